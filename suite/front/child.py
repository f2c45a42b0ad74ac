"""Old names of `suite.front.process`, for sweeps."""

from suite.front.process import Fields, serve
from suite.front.process import ProcessEnded as ChildEnded
from suite.front.process import RpcProcess as Child

__all__ = ["Child", "ChildEnded", "Fields", "serve"]
