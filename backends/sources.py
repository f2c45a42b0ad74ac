"""The code of scripts for a framework and for a user's function (see `suite.run.script`)."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple


class Dialect(NamedTuple):
    """Templates (`str.format`) for a framework's code in scripts.

    - `imports`: the lines that import the framework
    - `array`: the expression of an array with the NumPy `values`
    - `gradients`: lines that set `output`, and `grads`, the gradients by `names` for `cotangent`
    - `compiled`: by compiler, the expression that compiles `call`; "" calls it directly. Other compilers
      have no scripts
    """

    imports: str
    array: str
    gradients: str = ""
    compiled: Mapping[str, str] = {}


_TORCH = Dialect(
    "import torch",
    "torch.tensor({values}, dtype=torch.{dtype}, device={device!r})",
    """for array in ({names}):
    array.requires_grad_()
output = call({names})
grads = torch.autograd.grad(output, ({names}), cotangent, allow_unused=True)""",
    {n: f"torch.compile(call, backend={n!r}, dynamic=False)" for n in ("inductor", "aot_eager")},
)
_TF = Dialect(
    "import tensorflow as tf",
    'tf.cast({values}, "{dtype}")',
    """with tf.GradientTape() as tape:
    tape.watch([{names}])
    output = call({names})
grads = tape.gradient(output, [{names}], output_gradients=cotangent)""",
    {"function": "tf.function(call)", "xla": "tf.function(call, jit_compile=True)"},
)
_JAX = Dialect(
    'import jax\n\njax.config.update("jax_enable_x64", True)',
    'jax.numpy.asarray({values}, "{dtype}")',
    "output, pull = jax.vjp(call, {names})\ngrads = pull(cotangent)",
    {"ops": "", "jit": "jax.jit(call)", "aot": "jax.jit(call)"},
)
_KERAS = Dialect("import keras", 'keras.ops.convert_to_tensor({values}, "{dtype}")')


def _on(engine: str, dialect: Dialect) -> Dialect:
    """Returns the dialect of a framework that Keras uses as its engine."""
    engine_lines = f'import os\n\nos.environ["KERAS_BACKEND"] = "{engine}"\n'
    return dialect._replace(imports=engine_lines + dialect.imports)


DIALECTS = {
    "torch": _TORCH, "tf": _on("tensorflow", _TF), "jax": _JAX, "keras-torch": _on("torch", _TORCH),
    "keras-jax": _on("jax", _JAX), "keras-numpy": _on("numpy", _KERAS),
}  # fmt: skip
"""The dialects by backend. Other backends have no scripts."""


JUDGED = "_judged_"
"""The prefix of the names of modules that are imported from users' files."""


def home_of(path: Path) -> tuple[Path, str]:
    """Returns the folder from which a Python file can import its neighbours, and the dotted name of the
    package that the file belongs to ("" without a package)."""
    folder, names = path.resolve().parent, []
    while (folder / "__init__.py").is_file():
        names.append(folder.name)
        folder = folder.parent
    return folder, ".".join(reversed(names))


def function_source(function: Any, name: str) -> str:
    """Returns lines of Python that import a user's function under the name `function`; "" if it cannot be
    imported."""
    module = sys.modules.get(getattr(function, "__module__", ""))
    if module is None or getattr(module, name, None) is not function or not name.isidentifier():
        return ""
    if not module.__name__.rpartition(".")[2].startswith(JUDGED):
        return f"from {module.__name__} import {name} as function"
    file = Path(str(module.__file__)).resolve()
    folder, package = home_of(file)
    run_call = f"module({f'{package}.{file.stem}'!r})" if package else f"path({str(file)!r})"
    path = f"import runpy\nimport sys\n\nsys.path.insert(0, {str(folder)!r})"
    return f"{path}\nfunction = runpy.run_{run_call}[{name!r}]"
