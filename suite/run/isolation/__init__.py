"""The isolated judge: a user's function runs in a child process, and all that judges stays in the parent.

- `wire`: the messages of the two processes. What the child answers is validated by its type.
- `child`: the program of the child: the backend, the user's function, and a loop that answers.
- `link`: the child process, requests, and what is taken from the answers.
- `remote`: backend and implementation in the parent, whose calls the child makes.
- `parts`: memory, compilers and profiler of that backend.
- `description`: what the child says of the user's function.
- `sandbox`: the limits of the child.
"""
