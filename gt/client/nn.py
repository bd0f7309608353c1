"""`from gt.client.nn import Linear`: gt.nn under another name."""

import sys

from gt import nn

# The same module objects, and not copies: a Module is a Module, by whichever name it was imported.
for _name in [name for name in sys.modules if name == "gt.nn" or name.startswith("gt.nn.")]:
    sys.modules[_name.replace("gt.nn", __name__, 1)] = sys.modules[_name]
sys.modules[__name__] = nn
