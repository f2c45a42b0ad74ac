"""The primitives of operators (`references.tape`): each has an output, a VJP, a JVP, and derived
bounds."""
