"""Push a checkpoint of a run to the model hub, with a model card made from the run.

The hub's own library does the transfer: its login, `HF_ENDPOINT` and proxies apply.
"""

import tempfile
from pathlib import Path

from httpx import HTTPError
from huggingface_hub import HfApi

from mage.api.agents import export_run, warn
from mage.report.model_card import model_card
from mage.report.run_results import read_run_results
from mage.run_folder import RunError, RunFolder
from mage.training.weights import Say


def push_run(
    folder: RunFolder, repo: str, which: str = "best", *, private: bool = False, say: Say = warn
) -> str:
    """Upload a checkpoint and its card to the repository OWNER/NAME; returns its address."""
    with tempfile.TemporaryDirectory() as place:
        target = Path(place) / "model"
        update = export_run(folder, which, target, say)
        (target / "README.md").write_text(_card(folder, repo, update, target), "utf-8")
        try:
            api = HfApi()
            address = api.create_repo(repo, private=private, exist_ok=True)
            api.upload_folder(
                repo_id=repo,
                folder_path=target,
                commit_message=f"Update {update} of {folder.path.name}",
            )
        except (HTTPError, OSError, ValueError) as error:
            line = str(error).strip().splitlines()[0]
            raise RunError(
                f"the model hub refused the upload: {line}. Log in with `hf auth login`, check "
                f"the name {repo}, and try again; the run is unchanged"
            ) from None
    return str(address)


def _card(folder: RunFolder, repo: str, update: int, target: Path) -> str:
    return model_card(
        read_run_results(folder),
        name=repo,
        update=update,
        base=folder.recipe.model.path.partition("@")[0],
        adapters=(target / "adapter_config.json").is_file(),
    )
