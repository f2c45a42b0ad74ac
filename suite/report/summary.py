"""The terminal summary of a run."""
from collections import Counter
def lines(cells, missing):
    out=[]
    for impl in dict.fromkeys((c.backend,c.implementation) for c in cells):
        out.append(f"{impl} {dict(Counter(c.status for c in cells if (c.backend,c.implementation)==impl))}")
    return out
