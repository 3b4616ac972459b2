"""`mptui sample`: images made by a trained diffusion model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from mptui.cli import completion
from mptui.cli import options as o
from mptui.cli.options import Checkpoint, Force, check_checkpoint, head, note, opened, settings_of
from mptui.cli.output import file_progress, print_json
from mptui.io.written_files import OutputFiles
from mptui.registry.names import SamplingMethod
from mptui.text import clean

if TYPE_CHECKING:
    from mptui.lab.use.sample import GenerationRequest, ImageQuality, MadeImages
    from mptui.lab.use.trained import Trained

FORMAT_VERSION = 1
_MOST_STEPS = 1000

_Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of the images.", show_default=False)]
_Count = Annotated[int, typer.Option("--count", metavar="N", min=1, max=1_000_000, help="Number of images.")]
_Steps = Annotated[
    int,
    typer.Option(
        "--steps", metavar="N", min=1, max=_MOST_STEPS, help="Forward passes of the network for each image."
    ),
]
_Seed = Annotated[int, typer.Option("--seed", metavar="N", min=0, max=2**63 - 1, help="Seed of the noise.")]
_Method = Annotated[
    str,
    typer.Option(
        "--sampler",
        metavar="ancestral|ddim",
        help="ancestral: noise at each step, as DDPM; ddim: none after the first.",
    ),
]
_Class = Annotated[
    str | None,
    typer.Option(
        "--class", metavar="NAME", help="Class of all images; default: all in turn.", show_default=False
    ),
]
_Guidance = Annotated[
    float | None,
    typer.Option(
        "--guidance",
        metavar="W",
        min=0,
        callback=o.finite,
        help="Factor of the difference that a class makes; 1: no guidance. Default: the run's.",
        show_default=False,
    ),
]
_Features = Annotated[
    str | None,
    typer.Option(
        "--features",
        metavar="RUN",
        help="A trained classifier, whose features give precision and recall of the images.",
        autocompletion=completion.runs,
        show_default=False,
    ),
]


def app_command(app: typer.Typer) -> None:
    """Add the command."""
    app.command("sample")(sample)


def sample(
    ctx: typer.Context,
    run: o.Run,
    out: _Out,
    count: _Count = 64,
    steps: _Steps = 50,
    seed: _Seed = 0,
    method: _Method = "ancestral",
    class_name: _Class = None,
    guidance: _Guidance = None,
    features: _Features = None,
    checkpoint: Checkpoint = None,
    device: o.Device = None,
    trust_code: o.TrustCode = False,
    batch_size: o.BatchSize = None,
    force: Force = False,
    runs_dir: o.RunsDir = o.DEFAULT_RUNS_DIR,
    as_json: o.Json = False,
) -> int:
    """Make images with a trained diffusion model.

    Each image is a PNG file, and grid.png shows all of them. The same seed makes the same images; image 7
    is the same in 8 and in 64 images.
    """
    check_checkpoint(checkpoint)
    chosen = _checked(method)
    if features is not None and class_name is not None:
        raise typer.BadParameter("--features compares with images of all classes: leave --class out")
    from mptui.runs.store.directory import find_run

    path = find_run(runs_dir, run)
    trained = opened(path, checkpoint, settings_of(ctx.params), trust_code=trust_code)
    from mptui.lab.use.sample import GenerationRequest, image_quality, make_images, open_features

    classifier = None
    if features is not None:
        device = trained.plan.device.torch_name
        classifier = open_features(find_run(runs_dir, features), device, note=note, trust_code=trust_code)

    request = GenerationRequest(
        folder=out,
        count=count,
        steps=steps,
        seed=seed,
        method=chosen,
        class_name=class_name,
        guidance=guidance,
        output=OutputFiles(force=force),
    )
    with file_progress() as on_progress:
        made = make_images(trained, request, on_progress=on_progress, note=note)
        quality = None
        if classifier is not None:
            quality = image_quality(trained, classifier, made.files, on_progress=on_progress, note=note)
    if as_json:
        print_json(_document(trained, request, made, quality))
    else:
        _print(made, quality)
    rate, side = count / made.seconds, trained.config.data.image_size
    typer.echo(clean(f"{count:,} images of {side} px in {out}, {rate:,.1f} images/s", 4500), err=True)
    return 0


def _checked(method: str) -> SamplingMethod:
    known: tuple[SamplingMethod, ...] = get_args(SamplingMethod)
    for each in known:
        if each == method:
            return each
    raise typer.BadParameter(f"--sampler {clean(method, 100)}: neither {' nor '.join(known)}")


def _print(made: "MadeImages", quality: "ImageQuality | None") -> None:
    typer.echo(clean(str(made.grid), 4096))
    if quality is not None:
        found, training = quality.made, quality.training
        typer.echo(
            f"precision {found.precision:.3f}, recall {found.recall:.3f} "
            f"by {quality.images:,} validation images "
            f"(training images: {training.precision:.3f}, {training.recall:.3f})"
        )


def _document(
    trained: "Trained", request: "GenerationRequest", made: "MadeImages", quality: "ImageQuality | None"
) -> dict[str, Any]:
    return {
        **head(trained, FORMAT_VERSION),
        "sampler": request.method,
        "steps": request.steps,
        "seed": request.seed,
        "guidance": request.guidance,
        "out": str(request.folder),
        "grid": str(made.grid),
        "files": [str(path) for path in made.files],
        "classes": made.classes or None,
        "seconds": made.seconds,
        "quality": None
        if quality is None
        else {
            **quality.made._asdict(),
            "training_images": quality.training._asdict(),
            "images": quality.images,
        },
    }
