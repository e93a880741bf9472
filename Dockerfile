# page4d in a container, on a CPU or an NVIDIA GPU (torch of PyPI for Linux on x86_64 has CUDA in it):
#
#   docker build -t page4d .
#   docker run --rm --gpus all --user "$(id -u):$(id -g)" -v "$PWD:/data" page4d reconstruct rig --out out
#
# Without root, from the image of the first line:
#
#   apptainer build page4d.sif docker-daemon://page4d:latest
#   apptainer run --nv --bind "$PWD:/data" --pwd /data page4d.sif reconstruct rig --out out
#
# BASE is an image of Debian 12 or Ubuntu 24.04 or newer, such as one of nvidia/cuda.
ARG BASE=debian:bookworm-slim
FROM ${BASE}
ARG DEBIAN_FRONTEND=noninteractive
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 python3-venv python3-dev gcc libc6-dev libusb-1.0-0 libegl1 libgl1 libgomp1 \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/page4d
ENV PATH=/opt/page4d/bin:$PATH XDG_CACHE_HOME=/opt/cache
COPY constraints.txt /src/
RUN pip install --no-cache-dir --constraint /src/constraints.txt torch
COPY . /src
RUN pip install --no-cache-dir --constraint /src/constraints.txt '/src[viewer]' \
    && page4d weights get people && page4d weights get texture \
    && chmod -R a+rwX /opt/cache && rm -rf /src
WORKDIR /data
ENTRYPOINT ["page4d"]
