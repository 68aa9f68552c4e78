"""Another name of ``horizon_plugin``."""

from horizon_plugin._aliases import install

install(__name__, __file__)
