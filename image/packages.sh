#!/bin/sh
# Installs the packages of packages.txt that are missing: packages.sh LIST. A base made by
# services/sandbox/image.py without a registry holds them all already.
set -eu
packages=$(grep -v '^#' "$1")
# shellcheck disable=SC2086
if dpkg-query -W $packages >/dev/null 2>&1; then
    echo "the base image holds all packages"
    exit 0
fi
apt-get update -q
# shellcheck disable=SC2086
DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $packages
rm -rf /var/lib/apt/lists/*
