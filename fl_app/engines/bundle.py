"""The Flower app that a run is: settings, and the names of two installed apps."""

from fl_app.experiment.toml import Value, toml_value

CLIENT_APP = "fl_app.client_app:app"
APP = """[project]
name = "thorns"
version = "0"
license = "Apache-2.0"
[tool.flwr.app]
publisher = "thorns"
[tool.flwr.app.components]
serverapp = "fl_app.server_app:app"
clientapp = "{client_app}"
[tool.flwr.app.config]
"""


def app_toml(run_config: dict[str, Value], client_app: str = CLIENT_APP) -> str:
    """The pyproject.toml of an app that holds no code of its own."""
    lines = [f"{key} = {toml_value(value)}" for key, value in run_config.items()]
    return APP.format(client_app=client_app) + "\n".join(lines) + "\n"
