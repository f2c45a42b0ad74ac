"""Diagnosis: what is wrong with an implementation, in sentences for people.

- `finding`: a sentence, and how much of the failures it explains
- `kernels`: the faults of the catalogue as implementations
- `diagnose`: the best sentences of `catalogue` and `identify`
- `identify`: what is measured by probes. `instrument` asks; `weights`, `masks`, `sums`, `scale`,
  `heads`, `precision`, `behaviour` and `gradients` are the questions about plain attention; `others`,
  `layers` and `packed` those about other operators
- `evidence`: whether an implementation answers what a deviation answers, with the one threshold
- `conditions`: measured sentences compared with failing and passing cells
- `facts`: what an implementation computes, without a verdict
"""
