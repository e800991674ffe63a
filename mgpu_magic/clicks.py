"""A button whose click reaches the kernel while a cell runs, where front end and kernel allow it.

```
click ──> front end ── subshell ──> thread of the kernel's own, beside the cell
```

ipykernel 7 has subshells, and JupyterLab from 4.4 on and Notebook 7.4 send what widgets say over
one. But ipykernel 7.4 hands it to the shell that the widget's connection last spoke in, which is
the cell's, if that connection is one of its own making. So this one is not.
"""

from __future__ import annotations

import logging
from typing import Any

log = logging.getLogger("mgpu_magic")


def prompt_button(**traits: Any) -> Any | None:
    """A button of ipywidgets; None where its clicks would wait for the end of the cell anyway.

    That it is not None does not say that they do not: the front end may have no subshells. What
    tells is whether it says anything while the cell runs.
    """
    try:
        return _prompt_button(traits)
    except Exception as error:  # noqa: BLE001  # a kernel or widgets of another make: do without
        log.debug("no button while a cell runs: %s: %s", type(error).__name__, error)
        return None


def _prompt_button(traits: dict[str, Any]) -> Any | None:
    from IPython import get_ipython

    kernel = get_ipython().kernel
    if "kernel subshells" not in kernel.kernel_info.get("supported_features", ()):
        return None
    import comm
    import ipywidgets

    class Connection(comm.base_comm.BaseComm):  # type: ignore[misc]  # it has no types
        """Says what it is given where the kernel publishes; nothing before it is open."""

        said = False

        def publish_msg(
            self,
            msg_type: str,
            data: Any = None,
            metadata: Any = None,
            buffers: Any = None,
            **keys: Any,
        ) -> None:
            self.said = self.said or msg_type == "comm_open"
            if not self.said:  # what the button is made with is part of its opening
                return
            kernel.send_response(
                kernel.iopub_socket,
                msg_type,
                {"data": data or {}, "comm_id": self.comm_id, **keys},
                metadata=metadata or {},
                ident=self.topic,
                buffers=buffers,
            )

    connection = Connection(target_name="jupyter.widget", primary=False)
    comm.get_comm_manager().register_comm(connection)
    button = ipywidgets.Button(comm=connection, **traits)
    connection.open(
        data={"state": button.get_state(), "buffer_paths": []},
        metadata={"version": ipywidgets.__protocol_version__},
    )
    return button
