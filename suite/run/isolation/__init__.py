"""The isolated judge: a user's function runs in a child process, and all that judges stays in the parent.

- `wire`: the messages of the two processes. Answers of the child are validated by their types.
- `child`: the program of the child: the backend, the user's function, and a loop that answers.
- `link`: the child process, requests, the values of answers, and methods whose calls the child makes.
- `remote`: backend and implementation in the parent, whose calls the child makes.
- `function`: the user's function or layer in the parent, by the facts that the child sends.
- `sandbox`: the limits of the child.

No class mirrors a backend: the parent has the backend's own object, without its framework. The judge asks
about twenty operations of arrays and calls, some in the middle of a check (values before and after a
call, views, pullbacks, threads, modes), so that inputs in and outputs out are too little: objects stay in
the child, and have numbers. Binding and declaration of the user's function are made in the parent from
the names of its parameters, because a child could declare wider bounds.
"""
