"""`mptui sample`: images made by a trained diffusion model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from mptui.cli import completion
from mptui.cli import options as o
from mptui.cli.output import file_progress, print_json
from mptui.cli.use.used_run import UsedRun, head, note
from mptui.io.written_files import OutputFiles
from mptui.registry.names import SamplingMethod
from mptui.text import clean

if TYPE_CHECKING:
    from mptui.lab.use.sample import GenerationRequest, ImageQuality, MadeImages
    from mptui.lab.use.trained import Trained

_MOST_STEPS = 1000


class SampleOptions(UsedRun):
    """A run, and the images to make."""

    out: Path = o.required_option("DIR", "Folder of the images.")
    count: int = o.option(64, "N", "Number of images.", min=1, max=1_000_000)
    steps: int = o.option(50, "N", "Forward passes of the network for each image.", min=1, max=_MOST_STEPS)
    noise_seed: int = o.option(0, "N", "Seed of the noise.", "--seed", min=0, max=2**63 - 1)
    method: str = o.option(
        "ancestral",
        "ancestral|ddim",
        "ancestral: noise at each step, as DDPM; ddim: none after the first.",
        "--sampler",
    )
    class_name: str | None = o.option(None, "NAME", "Class of all images; default: all in turn.", "--class")
    guidance: float | None = o.option(
        None,
        "W",
        "Factor of the difference that a class makes; 1: no guidance. Default: the run's.",
        min=0,
    )
    features: str | None = o.option(
        None,
        "RUN",
        "A trained classifier, whose features give precision and recall of the images.",
        autocompletion=completion.runs,
    )


_OPTIONS = (
    "run out count steps noise_seed method class_name guidance features checkpoint device trust_code"
    " batch_size force runs_dir"
)


def sample(options: Annotated[SampleOptions, _OPTIONS], output: o.Output) -> int:
    """Make images with a trained diffusion model.

    Each image is a PNG file, and grid.png shows all of them. The same seed makes the same images; image 7
    is the same in 8 and in 64 images.
    """
    options.check_checkpoint()
    chosen = _checked(options.method)
    if options.features is not None and options.class_name is not None:
        raise typer.BadParameter("--features compares with images of all classes: leave --class out")
    from mptui.runs.store.directory import find_run

    trained = options.opened(options.path())
    from mptui.lab.use.sample import GenerationRequest, image_quality, make_images, open_features

    classifier = None
    if options.features is not None:
        path, device = find_run(options.runs_dir, options.features), trained.plan.device.torch_name
        classifier = open_features(path, device, note=note, trust_code=options.trust_code)

    request = GenerationRequest(
        folder=options.out,
        count=options.count,
        steps=options.steps,
        seed=options.noise_seed,
        method=chosen,
        class_name=options.class_name,
        guidance=options.guidance,
        output=OutputFiles(force=options.force),
    )
    with file_progress() as on_progress:
        made = make_images(trained, request, on_progress=on_progress, note=note)
        quality = None
        if classifier is not None:
            quality = image_quality(trained, classifier, made.files, on_progress=on_progress, note=note)
    if output.as_json:
        print_json(_document(trained, request, made, quality), older={"steps": "sampling_steps"})
    else:
        _print(made, quality)
    count, side = options.count, trained.config.data.image_size
    rate = count / made.seconds
    typer.echo(clean(f"{count:,} images of {side} px in {options.out}, {rate:,.1f} images/s", 4500), err=True)
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
        **head(trained),
        "sampler": request.method,
        "sampling_steps": request.steps,
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
