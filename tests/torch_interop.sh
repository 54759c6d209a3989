#!/bin/sh
# Runs torch_interop_test.py with the Python that $TRAINER_PYTHON names, else python3. Exits with
# 77 ("skipped") where there is none, or it has no PyTorch.
python=${TRAINER_PYTHON:-python3}
if ! command -v "$python" >/dev/null; then
    echo "skipped: there is no $python"
    exit 77
fi
exec "$python" "$(dirname "$0")/torch_interop_test.py" "$@"
