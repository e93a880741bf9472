#!/bin/sh
# Install the system libraries of Open3D as root, otherwise print the command. Always exits with 0: page4d works without.
set -u
packages=""
for pair in libusb-1.0.so.0:libusb-1.0-0 libEGL.so.1:libegl1 libGL.so.1:libgl1; do
    ldconfig -p 2>/dev/null | grep -q "${pair%%:*}" || packages="$packages ${pair##*:}"
done
[ -n "$packages" ] || exit 0
line="apt-get update && apt-get install --yes$packages"
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing system libraries for Open3D:$packages"
    DEBIAN_FRONTEND=noninteractive sh -c "apt-get -qq update && apt-get -qq install --yes $packages >/dev/null" && exit 0
fi
echo "system libraries for Open3D are missing:$packages; page4d writes its files without it. To install them: sudo sh -c '$line'"
exit 0
