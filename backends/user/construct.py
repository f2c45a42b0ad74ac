"""Constructors of user layers: the names of their parameters, and the argument for each name.

`CONSTRUCTOR` is the published list (docs/layers.md, "Your class as it is"). `Maker` makes a layer for a
case: each parameter of the constructor gets the argument that the list has for its name.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from attention_conformance.backends.binder import (
    BY_PLACE,
    Binder,
    Parameter,
    UnreadableSignature,
    required,
    signature_of,
)
from attention_conformance.backends.user.names import OPERAND_NAMES
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.vocabulary import OPERANDS

T = TypeVar("T")


@dataclass(frozen=True)
class Named(Parameter[Inputs]):
    """A parameter of a constructor, with all its names.

    - `text`: its argument in words, for docs/layers.md
    - `joined_heads(inputs)`: its argument for code whose sizes are those of all heads together; None if
      there is no such code
    """

    text: str = ""
    joined_heads: Callable[[Inputs], Any] | None = None

    def argument(self, joined_heads: bool) -> Callable[[Inputs], Any]:
        """Returns the function from inputs to the argument. `joined_heads`: the code's sizes are those of
        all heads together."""
        return (joined_heads and self.joined_heads) or self.value


def constructor_row(
    names: str,
    text: str,
    value: Callable[[Inputs], Any],
    *features: str,
    joined_heads: Callable[[Inputs], Any] | None = None,
) -> Named:
    """Returns a row of the list. `names` are separated by spaces; the first is the suite's own name."""
    name, *other_names = names.split()
    return Named(
        name, features, value, names=tuple(other_names), text=text, joined_heads=joined_heads
    )


def option_value(name: str) -> Callable[[Inputs], Any]:
    """Returns a function from inputs to the value of the option `name`; None if the operator lacks the
    option."""
    return lambda inputs: inputs.case.option(name)


def all_heads(inputs: Inputs) -> int:
    """Returns H D, the width of the queries of all heads; in additive attention the number of units."""
    return inputs.sizes.H * inputs.sizes.D


def rngs() -> Any:
    """Returns new random generators for a module of Flax. Modules share none, because generators count
    their uses."""
    return importlib.import_module("flax.nnx").Rngs(0)


def argument_value(value: Any) -> Any:
    """Returns `value`, or new generators if it is the function `rngs`."""
    return value() if value is rngs else value


def width_of(name: str) -> Callable[[Inputs], int]:
    """Returns a function from inputs to the width of an operand of a layer; H D for operators that are no
    layers."""
    return lambda inputs: (
        getattr(inputs.widths, name) if inputs.operator.is_layer else all_heads(inputs)
    )


def longest_length(inputs: Inputs) -> int:
    """Returns the larger one of Lq and Lk."""
    return max(inputs.sizes.Lq, inputs.sizes.Lk)


def hidden_width(inputs: Inputs) -> int | None:
    """Returns the hidden width of an encoder's feed-forward network; None for other layers."""
    return None if inputs.case.option("pre") is None else inputs.letters["o"]


DTYPE_PARAMETERS = ("dtype", "param_dtype")
"""The names of parameters for a dtype."""

UNITS = (
    "units hidden_size hidden_dim num_hiddens num_units n_units attention_dim attn_dim attention_size "
    "inner_dim out_dim output_dim d_out dim_out output_size out_features qkv_features"
)

CONSTRUCTOR: tuple[Named, ...] = (
    constructor_row(
        "query_width d_model model_dim dim_model embed_dim embedding_dim emb_dim embed_size emb_size "
        "n_embd dim dim_in d_in in_dim input_dim input_size in_features query_size query_dim q_dim "
        "dim_q decoder_dim n_state features model_size",
        "Eq, the width of the queries",
        width_of("query"), "cross",
    ),
    constructor_row("key_width kdim k_dim encoder_dim context_dim", "Ek", width_of("key"), "key-width"),
    constructor_row("value_width vdim v_dim", "Ev", width_of("value"), "value-width"),
    constructor_row("output_width", "Eo", width_of("output"), "output-width"),
    constructor_row(
        "heads num_heads n_heads n_head num_head nhead nheads head_num num_attention_heads "
        "attention_heads h",
        "H", lambda inputs: inputs.sizes.H,
    ),
    constructor_row(
        "key_heads num_kv_heads n_kv_heads n_kv_head kv_heads num_key_value_heads",
        "Hkv", lambda inputs: inputs.sizes.Hkv, "grouped-heads",
    ),
    constructor_row(
        "key_size d_k dk d_key key_dim head_dim head_size d_head dim_head attention_head_size "
        "size_per_head",
        "D; H D if the layers have this size",
        lambda inputs: inputs.sizes.D, "head-width", joined_heads=all_heads,
    ),
    constructor_row(
        "value_size d_v dv d_value value_dim v_head_dim",
        "Dv; H Dv if the layers have this size",
        lambda inputs: inputs.sizes.Dv, "value-size",
        joined_heads=lambda inputs: inputs.sizes.H * inputs.sizes.Dv,
    ),
    constructor_row(UNITS, "H D; additive: U", all_heads),
    constructor_row(
        "bias qkv_bias use_bias add_bias attention_bias", "whether the case has biases",
        lambda inputs: "query_bias" in inputs.parameters, "no-projection-bias",
    ),
    constructor_row("rate", "the rate of dropout", lambda inputs: inputs.rate, "dropout"),
    constructor_row(
        "dropout dropout_p p_dropout dropout_rate drop_rate dropout_prob attn_dropout "
        "attention_dropout attn_pdrop resid_dropout resid_pdrop proj_drop attn_drop",
        "0.0", lambda inputs: 0.0,
    ),
    constructor_row(
        "block_size max_len max_length max_seq_len max_seq_length seq_len seq_length "
        "sequence_length context_length context_size context_window n_ctx n_positions "
        "max_position_embeddings",
        "the larger one of Lq and Lk", longest_length,
    ),
    constructor_row("batch_first", "True", lambda inputs: True),
    constructor_row("decode", "False", lambda inputs: False),
    constructor_row("hidden_width", "F, of an encoder", hidden_width),
    constructor_row(
        "norm_first", "whether an encoder's norms stand first", option_value("pre"), "pre-norm"
    ),
    constructor_row("activation", '"relu" or "gelu", of an encoder', option_value("activation"), "gelu"),
    constructor_row("epsilon", "what a norm adds to the variance", option_value("epsilon")),
    constructor_row(
        "qk_norm", "whether queries and keys are normalised", option_value("qk_norm"), "qk-norm"
    ),
    constructor_row(
        " ".join(DTYPE_PARAMETERS), "the name of the dtype", lambda inputs: inputs.dtype.long_name
    ),
    constructor_row("rngs", "the random numbers of Flax, `nnx.Rngs(0)`", lambda inputs: rngs),
)  # fmt: skip
"""The parameters of constructors, by their names."""

CONFIGS = ("config", "cfg", "conf", "args", "hparams")
"""Names of parameters for a config: an object whose attributes have the names of `CONSTRUCTOR`."""

WIDTH_ROWS = {"key_size": "key_width", "value_size": "value_width", "key_dim": "key_width",
          "value_dim": "value_width"}  # fmt: skip
"""By name of a size: the row of the width that the name means in constructors with a name of
`QUERY_WIDTH_NAMES`."""

QUERY_WIDTH_NAMES = {"query_size", "query_dim"}
"""Names of the width of queries. In constructors with one of them, the names of `WIDTH_ROWS` mean
widths."""

ROWS: Mapping[str, Named] = {name: row for row in CONSTRUCTOR for name in row.every_name}
"""The row of each name."""


def row_of(name: str, names: Collection[str] = ()) -> Named | None:
    """Returns the row of a constructor's parameter `name`; None for an unknown name. `names`: all
    parameters of the constructor."""
    if QUERY_WIDTH_NAMES & {*names}:
        name = WIDTH_ROWS.get(name, name)
    return ROWS.get(name) or ROWS.get(name.lower())


def factory_table(
    names: Collection[str], joined_heads: bool = False
) -> tuple[Parameter[Inputs], ...]:
    """Returns the rows of the parameters `names` under these names, and all other rows under their own
    names."""
    rows = {name: row_of(name, names) for name in names}
    used = {row: [name for name in names if rows[name] is row] for row in CONSTRUCTOR}
    unused = {row: [row.name] for row in CONSTRUCTOR if row.name not in rows}
    named_rows = ((row, name) for row in CONSTRUCTOR for name in used[row] or unused.get(row, []))
    return tuple(
        replace(row.under(name), value=row.argument(joined_heads)) for row, name in named_rows
    )


class Settings:
    """The argument for a parameter of `CONFIGS`: attributes or items by the names of `CONSTRUCTOR`.

    `names_read`: the names that were read, as keys. Other names raise AttributeError or KeyError.
    """

    def __init__(self, inputs: Inputs, joined_heads: bool = False) -> None:
        self._inputs, self._joined_heads = inputs, joined_heads
        self.names_read = dict[str, None]()

    def __getattr__(self, name: str) -> Any:
        row = row_of(name)
        if row is None:
            raise AttributeError(
                f"the suite gives a config no {name!r}: expected names of the list in docs/layers.md; "
                "name it so, or make the layer in a function with parameters of these names"
            )
        self.names_read[name] = None
        return argument_value(row.argument(self._joined_heads)(self._inputs))

    def __getitem__(self, name: str) -> Any:
        try:
            return getattr(self, name)
        except AttributeError as error:
            raise KeyError(str(error)) from error


@dataclass(frozen=True)
class Maker:
    """Makes a user's layers.

    - `binder`: the parameters of the constructor, or the names that it reads from its config
    - `config`: the name of the parameter that is a config; "" if there is none
    - `joined_heads`: the constructor gets H D and H Dv in place of D and Dv
    """

    factory: Callable[..., Any]
    binder: Binder[Inputs]
    config: str = ""
    joined_heads: bool = False

    @classmethod
    def of(
        cls,
        factory: Callable[..., Any],
        name: str,
        config_names: Iterable[str] = (),
        joined_heads: bool = False,
    ) -> Maker:
        """Returns the maker of a class or function. `config_names`: the names that it reads from its
        config. Raises TypeError if the signature does not fit."""
        names = parameter_names_of(factory)
        configs = [name for name in names if name in CONFIGS]
        if {p.name for p in parameters_of(factory) if required(p)} & OPERAND_OF.keys():
            raise TypeError(
                f"{name}({', '.join(names)}) takes arrays, expected a class or function that makes a "
                "layer: make its layers in the constructor of a class, from sizes that it takes, whose "
                "call takes these arrays (docs/layers.md)"
            )
        table = factory_table([*names, *config_names], joined_heads)
        if is_module(factory):  # torch's are made, and then moved to the dtype
            table = tuple(row for row in table if row.name not in {*DTYPE_PARAMETERS} & {*names})
        config: tuple[Parameter[Inputs], ...] = tuple(map(Parameter, configs))
        binder = Binder.of(factory, name, (*table, *config), (), "factory")
        if configs:
            binder = replace(binder, table=table, taken=binder.taken - {*configs} | {*config_names})
        return cls(factory, binder, configs[0] if configs else "", joined_heads)

    @property
    def takes_width(self) -> bool:
        """True if a parameter of the constructor is the width of the query, or the size of all heads."""
        return any(map(self.binder.name_of, ("query_width", "units")))

    def settings(self, inputs: Inputs) -> Settings:
        """Returns a new config for these inputs."""
        return Settings(inputs, self.joined_heads)

    def __call__(self, inputs: Inputs, settings: Settings | None = None) -> Any:
        """Returns a new layer for the inputs' sizes. `settings`: its config, by default a new one."""
        if not self.config:
            return self.factory(
                **{n: argument_value(v) for n, v in self.binder.bind(inputs).items()}
            )
        names = parameter_names_of(self.factory)
        keywords = {n: argument_value(v) for n, v in self.binder.bind(inputs).items() if n in names}
        return self.factory(**keywords, **{self.config: settings or self.settings(inputs)})


def is_module(factory: Callable[..., Any]) -> bool:
    """True for a subclass of torch's modules."""
    return any(base.__module__.startswith("torch.nn") for base in getattr(factory, "__mro__", ()))


def parameters_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Returns the parameters of a callable; [] if Python cannot read its signature."""
    try:
        return [*signature_of(function).parameters.values()]
    except UnreadableSignature:
        return []


def parameter_names_of(function: Callable[..., Any]) -> list[str]:
    """Returns the names of a callable's parameters, without `*args` and `**kwargs`."""
    anything = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    return [p.name for p in parameters_of(function) if p.kind not in anything]


SINGLE_ARRAY_NAMES = ("x", "X", "inputs", "input", "hidden_states", "tokens")
"""Further names of the array of a layer that takes only one array."""

OPERAND_OF = dict.fromkeys(SINGLE_ARRAY_NAMES, "query") | {
    name: word
    for word, names in OPERAND_NAMES.items()
    for name in (*names, word[0].upper(), f"inputs_{word[0]}")
}
"""By name of a layer's array: "query", "key" or "value"."""


def array_parameters(
    function: Callable[..., Any], table: Iterable[Parameter[T]]
) -> list[str] | None:
    """Returns the first parameters of a layer's call whose names are in `OPERAND_OF`. None if there are
    none, or if the next parameter has no default and is not in `table`."""
    row_names = {name for row in table for name in row.every_name}
    arrays: list[str] = []
    for parameter in parameters_of(function):
        if parameter.kind not in BY_PLACE:
            break
        if parameter.name in OPERAND_OF and len(arrays) < len(OPERANDS):
            arrays.append(parameter.name)
        elif required(parameter) and parameter.name not in row_names:
            return None
        else:
            break
    return arrays or None


def operand_order(names: Iterable[str]) -> list[str]:
    """Returns which operand each array of a layer's call is, "query", "key" or "value": by the arrays'
    names, or in this order if the names do not tell."""
    named = [OPERAND_OF.get(name, "") for name in names]
    standard = [*OPERANDS][: len(named)]
    return named if sorted(named) == sorted(standard) else standard


TIES: Mapping[str, str] = {
    "": "",
    "v=d o=d": "values have the size of keys",
    "d=x v=x o=x": "heads have the width of the input",
    "d=x y=x": "units and keys have the width of queries",
    "d=x y=x z=x v=x o=x": "everything has the width of queries",
}
"""Sizes that a constructor of one head cannot set separately, as equal letters of axes, each with a
sentence."""


def with_tie(case: Case, tie: str) -> Case:
    """Returns the case in which sizes are equal as `tie`, one of `TIES`, says. Raises ValueError if the
    operator has no such case."""
    if not tie or case.widths is None:
        return case
    size = dict(case.letters)
    for pair in tie.split():
        size[pair[0]] = size[pair[2]]
    sizes = replace(case.sizes, D=size["d"], Dv=size["v"])
    widths = replace(case.widths, query=size["x"], key=size["y"], value=size["z"], output=size["o"])
    return replace(case, sizes=sizes, widths=widths)


def is_tied(case: Case, tie: str) -> bool:
    """True if the sizes of a case are equal as `tie` says."""
    return all(case.letters[pair[0]] == case.letters[pair[2]] for pair in tie.split())


def ties_of(case: Case) -> Iterator[str]:
    """Yields the ties that a case can have. With several heads this is only ""."""
    for tie in TIES if case.sizes.H == 1 else ("",):
        try:
            with_tie(case, tie)
        except ValueError:
            continue
        yield tie
