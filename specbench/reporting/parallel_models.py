"""What a run of parallel models can show: it depends on whether they share a device."""

from specbench.analysis.run_summary import RunSummary

PARALLEL = "Parallel models"  # how the note begins


def parallel_note(summary: RunSummary) -> str:
    """Return whether a run's parallel models share a device, by their placement; empty for a run without any."""
    parallel = [spec for spec in summary.spec.methods.values() if spec.options.get("name") == "parallel"]
    places: dict[str, list[str]] = {}
    for role in dict.fromkeys(role for spec in parallel for role in spec.traits.roles):
        places.setdefault(_device(summary.models[role].placement or summary.spec.device), []).append(role)
    if not places:
        return ""
    why = "The slides name traffic between devices as the reason why parallel models are slow"
    if len(places) == 1:
        return f"{PARALLEL} share one device, {next(iter(places))}. {why}, which this cannot show."
    where = "; ".join(f"{', '.join(roles)} on {device}" for device, roles in places.items())
    return f"{PARALLEL} are on {len(places)} devices: {where}. {why}."


def _device(name: str) -> str:
    """Return a device's name, the first GPU always as cuda:0."""
    return "cuda:0" if name == "cuda" else name
