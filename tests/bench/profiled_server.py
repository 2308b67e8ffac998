"""A server under the profiler. Run as a process of its own: prints what its time went into.

profiled_server.py SETTINGS_JSON PORT
"""

import cProfile
import pstats
import signal
import sys

import uvicorn

from proctor_kernel.api.app import application
from proctor_kernel.settings import Settings

if __name__ == "__main__":
    settings = Settings.model_validate_json(sys.argv[1])
    config = uvicorn.Config(
        application(settings), host="127.0.0.1", port=int(sys.argv[2]), log_config=None
    )
    # The server raises the signal that stopped it once more, when it is done.
    signal.signal(signal.SIGTERM, lambda *_: None)
    profile = cProfile.Profile()
    profile.enable()
    uvicorn.Server(config).run()
    profile.disable()
    pstats.Stats(profile).sort_stats("tottime").print_stats(18)
