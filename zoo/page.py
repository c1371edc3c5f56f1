def findings(x): 
    import collections
    out=[]
    for label,runs in x.items():
        out.append(label)
        for r in runs: out.append(f"  {r.front:15}{r.policy:14}{r.inputs:8}"+str(dict(collections.Counter(r.outcomes)))[:300]+f" {r.output_error} {r.gradient_error} {r.parameters}")
    return "\n".join(out)
def page(x): return ""
