"""Which model and which proposers are served when the operator names none."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from launcher.services.commands import IN_PROCESS, NO_DRAFT, proposer_name
from slipstream.generation_config import config_file
from slipstream.model_folder import no_such_folder, refuse_pointers
from slipstream.rpc.errors import FailedPreconditionError
from slipstream.speculation.config import PARAMETERS, SpeculativeConfig

DEMO_MODEL = "slipstream-demo"
DEMO_DRAFT = "slipstream-demo-draft"
DEMO_HEAD = "slipstream-demo-eagle3"
DEMO_DISTRIBUTION = "slipstream-demo-models"
DRAFT_MODEL = "draft-model"
EAGLE3 = "eagle3"
NGRAM = "ngram"


class ModelNotFoundError(RuntimeError):
    """A folder that should hold a model does not. The message says what to do."""


def demo_folder(name: str) -> Path:
    """A demo model: of `demo_models/` beside this package in a source tree, else of its own distribution."""
    for place in _demo_places():
        if (place / name / "config.json").is_file():
            return place / name
    raise ModelNotFoundError(
        f"the demo model {name} is not installed: name another model with --model DIR, or install the wheel of "
        f"{DEMO_DISTRIBUTION}, which `make build` in a source tree puts into dist/"
    )


def _demo_places() -> list[Path]:
    installed = find_spec(DEMO_DISTRIBUTION.replace("-", "_"))
    folders = (installed.submodule_search_locations or ()) if installed else ()
    return [Path(__file__).resolve().parents[2] / "demo_models", *map(Path, folders)]


def named_folder(model: str | Path) -> Path:
    """An absolute path; the bare name of a demo model is that model, unless there is such a folder."""
    folder = Path(model).expanduser()
    if str(model) in (DEMO_MODEL, DEMO_DRAFT, DEMO_HEAD) and not folder.exists():
        return demo_folder(str(model))
    return folder.resolve()


def resolve_model(model: Path | None, *, flag: str = "--model") -> Path:
    """The folder to serve: the given one, or the demo model. `flag` is what named it."""
    if model is None:
        return demo_folder(DEMO_MODEL)
    folder = _existing(model, flag)
    if not (folder / "config.json").is_file():
        raise ModelNotFoundError(f"no config.json in {folder}; {flag} wants the folder of a Hugging Face checkpoint")
    return folder


def _existing(given: str | Path, flag: str) -> Path:
    """A folder that is there, with its large files, as far as it has any. ModelNotFoundError says what to do."""
    folder = named_folder(given)
    if not folder.is_dir():
        raise ModelNotFoundError(f"{flag}: {no_such_folder(given)}")
    try:
        refuse_pointers(folder)
    except (FailedPreconditionError, OSError) as error:
        raise ModelNotFoundError(f"{flag}: {error}") from error
    return folder


def resolve_template(file: Path | None) -> Path | None:
    """The file of a chat template, where one was given. ModelNotFoundError if it is not there."""
    if file is None:
        return None
    path = file.expanduser().resolve()
    if not path.is_file():
        raise ModelNotFoundError(f"--chat-template: no such file: {path}")
    return path


def resolve_defaults(source: str | None, model: Path) -> str | None:
    """Where sampling defaults of the model in a folder come from. ModelNotFoundError for a folder without any."""
    if source is not None:
        try:
            config_file(model, source)
        except FailedPreconditionError as error:
            raise ModelNotFoundError(f"--generation-config: {error.message}") from error
    return source


def resolve_draft(draft: Sequence[str], *, demo: bool, target: Path | None = None) -> tuple[str, ...]:
    """Proposer specs with their folders; the first is the default. "none" alone means no speculation.

    Without any, the demo model gets its own draft model and n-grams, other models n-grams alone. Heads that name no
    target are lent `target`, the folder of the model that is served.
    """
    if not draft:
        return (f"{DRAFT_MODEL}:{demo_folder(DEMO_DRAFT)}", NGRAM) if demo else (NGRAM,)
    if NO_DRAFT in draft:
        if len(draft) > 1:
            raise ValueError("--draft none excludes other proposers")
        return ()
    places = [(proposer_name(spec), spec.startswith(IN_PROCESS)) for spec in draft]
    if len(set(places)) < len(places):
        raise ValueError(f"--draft names a proposer twice in one place, behind '{IN_PROCESS}' or without it")
    return tuple(_resolve_spec(spec, demo=demo, target=target) for spec in draft)


def configured_draft(configs: Sequence[SpeculativeConfig], model: Path) -> tuple[str, ...]:
    """Proposer specs of a configuration of speculation, for the model in the folder `model`; the first is the default.

    ModelNotFoundError for a folder of weights that is not there, ValueError for paths that no argument can carry.
    """
    resolved = [_with_folder(config).serving(model) for config in configs]
    return tuple(IN_PROCESS + config.spec if config.inproc else config.spec for config in resolved)


def _with_folder(config: SpeculativeConfig) -> SpeculativeConfig:
    if config.model is None or config.method not in PARAMETERS:
        return config
    return config.with_path("model", _existing(config.model, "speculative_config: model"))


def _resolve_spec(spec: str, *, demo: bool, target: Path | None) -> str:
    if spec.startswith(IN_PROCESS):
        own = spec.removeprefix(IN_PROCESS)
        if own in ("", NO_DRAFT) or own.startswith(IN_PROCESS):
            raise ValueError(
                f"--draft {spec} names no proposer; write {IN_PROCESS}NAME, or --draft {NO_DRAFT} for none"
            )
        return IN_PROCESS + _resolve_spec(own, demo=demo, target=target)
    name, colon, argument = spec.partition(":")
    if "=" in name:
        return spec
    if name == DRAFT_MODEL and colon:
        folder, more, parameters = argument.partition(":")
        return f"{name}:{resolve_model(Path(folder), flag=f'--draft {name}')}{more}{parameters}"
    if name == DRAFT_MODEL:
        if not demo:
            raise ValueError("--draft draft-model needs a folder: --draft draft-model:DIR")
        return f"{name}:{demo_folder(DEMO_DRAFT)}"
    if spec == EAGLE3 and demo:
        spec = f"{name}:{demo_folder(DEMO_HEAD)}"
    return _with_target(spec, target) if "target" in PARAMETERS.get(name, ()) else spec


def _with_target(spec: str, target: Path | None) -> str:
    """The spec of a head, its folder checked, with the folder of the target if it names none."""
    name, _, argument = spec.partition(":")
    folder, *parameters = argument.split(":")
    if not folder and name == "mtp" and target is not None:
        return f"mtp:{target}"
    if not folder or "=" in folder:
        raise ValueError(f"--draft {name} needs a folder: --draft {name}:DIR")
    place = _existing(folder, f"--draft {name}")
    lends = target is not None and not any(each.startswith("target=") for each in parameters)
    return ":".join((name, str(place), *parameters, *((f"target={target}",) if lends else ())))
