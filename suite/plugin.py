"""The pytest plugin, where it has always been called from; see `suite.front.plugin`."""

from suite.front.plugin import *  # noqa: F403
