"""Diagnosis: what is wrong with an implementation, in sentences for people.

- `finding`: a diagnosis: a sentence, and the number of failing cells that it explains
- `diagnose`: the best diagnoses by `catalogue` and `identify`
- `outcome`: an implementation's answer in a cell, and the right one
- `evidence`: outcomes compared with the answers of deviations
- `kernels`: the faults of the catalogue, and measured faults, as implementations
- `instrument`: probes. A symptom is a fault that probes found: a fault of the catalogue, or a number that
  was measured. Modules of symptoms: `weights`, `masks`, `sums`, `scale`, `heads`, `precision`,
  `behaviour` and `gradients`; `others` for operators other than plain attention
- `conditions`: symptoms compared with failing and passing cells
- `facts`: what an implementation computes, without a verdict
"""
