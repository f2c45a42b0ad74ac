"""The primitives that operators are composed of (`references.tape`): each has its forward pass, what its
operands receive, how it moves, and the derivation of its bounds."""
