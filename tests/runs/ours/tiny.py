"""Runs of seconds, for tests of what becomes of the files beside them."""

from tests.cli.calls import call

TINY = {
    "MPTUI_MODEL_NAME": "unet",
    "MPTUI_MODEL_WIDTH": "2",
    "MPTUI_MODEL_DEPTH": "1",
    "MPTUI_DATA_SAMPLES": "16",
    "MPTUI_DATA_IMAGE_SIZE": "16",
    "MPTUI_DATA_WORKERS": "0",
    "MPTUI_TRAINING_EPOCHS": "1",
    "MPTUI_HARDWARE_DEVICE": "cpu",
    "MPTUI_LOGGING_PICTURES": "0",
    "MPTUI_GUARDS_NUMERICS": "off",
}


def mptui(*arguments):
    """Call `mptui ARGUMENTS`, which trains in this process."""
    return call(*arguments, environ=TINY)


def contents(folder):
    """Each file below a folder and what is in it; links are told by their target."""
    return {
        str(path.relative_to(folder)): path.readlink() if path.is_symlink() else path.read_bytes()
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    }
