"""Diagnosis: what is wrong with an implementation, in sentences for people.

- `finding`: a diagnosis: a sentence, and the number of failing cells that it explains
- `diagnose`: the best diagnoses by `catalogue` and `identify`
- `outcome`: an implementation's answer in a cell, and the right one
- `evidence`: outcomes compared with the answers of deviations
- `kernels`: the faults of the catalogue as implementations
- `instrument`: probes. A symptom is a fault that probes measured, a variant is a faulty computation that
  people write. Modules of symptoms: `weights`, `masks`, `sums`, `scale`, `heads`, `precision`,
  `behaviour` and `gradients`; for operators other than plain attention `others`, `layers`, `rotary` and
  `packed`
- `conditions`: symptoms compared with failing and passing cells
- `facts`: what an implementation computes, without a verdict
"""
