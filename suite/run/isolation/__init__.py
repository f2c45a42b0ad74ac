"""The isolated judge: a user's function runs in a child process, and all that judges stays in the parent.

- `wire`: the messages of the two processes. Answers of the child are validated by their types.
- `child`: the program of the child: the backend, the user's function, and a loop that answers.
- `link`: the child process, requests, the values of answers, and methods whose calls the child makes.
- `remote`: backend and implementation in the parent, whose calls the child makes.
- `function`: the user's function or layer in the parent, by the facts that the child sends.
- `sandbox`: the limits of the child.
"""
