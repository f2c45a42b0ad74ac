"""Adapters of frameworks. The modules here are about four things:

- what an implementation promises: `declared`, `limits`; of user code `claims`, `forbidden`
- how a framework is called: `prepared`, `binder`, `masks`, `memory`, `operators`, `in_pages`, `caching`,
  `sources`
- the framework as an engine: `engine`, `protocol`, `arrays`, `threads`
- what is called: `implementation`, `compilers`; functions and layers of a framework as rows of a table
  of implementations: `kernel`, `layer`; `textbook` and `user` code

`registry` finds backends and users' functions by name.
"""
