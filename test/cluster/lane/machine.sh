#!/bin/bash
# PID 1 of a machine, in namespaces of its own. usage: machine.sh FOLDER NAME CGROUP-HIERARCHIES…
# The folder keeps what a disk keeps at a reboot: /var, /opt and the changes of /etc.
set -e
folder=$1
hostname "$2"
shift 2
mount --make-rshared /
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t tmpfs cgroups /sys/fs/cgroup
for hierarchy in "$@"; do
  mkdir "/sys/fs/cgroup/$hierarchy"
  if [ "$hierarchy" = systemd ]; then
    mount -t cgroup -o none,name=systemd systemd /sys/fs/cgroup/systemd
  else
    mount -t cgroup -o "$hierarchy" "$hierarchy" "/sys/fs/cgroup/$hierarchy"
  fi
done
mkdir -p "$folder"/{var/log,var/lib,var/tmp,opt/cni/bin,etc,etc-work,cni/net.d,settings}
mount --bind "$folder/var" /var
mount --bind "$folder/opt" /opt
mount -t overlay -o "lowerdir=/etc,upperdir=$folder/etc,workdir=$folder/etc-work" overlay /etc
# Without the network configurations of the host.
mkdir -p /etc/cni
mount --bind "$folder/cni" /etc/cni
mount -t tmpfs run /run
mkdir -p /run/netns /run/lock
# Container runtimes and CNI name the same folder by both paths.
ln -sfn /run /var/run
# Settings of the kernel that the kubelet insists on: it reads these values, and the host keeps its own.
fake() {
  echo "$2" > "$folder/settings/$1"
  mount --bind "$folder/settings/$1" "/proc/sys/${1//.//}"
}
fake vm.overcommit_memory 1
fake vm.panic_on_oom 0
fake kernel.panic 10
fake kernel.panic_on_oops 1
fake kernel.keys.root_maxkeys 1000000
fake kernel.keys.root_maxbytes 25000000
ip link set lo up
touch /run/machine-is-up
# Processes whose parent ended become children of this one: bash reaps them.
trap 'exit 0' TERM
while :; do
  sleep 1000 &
  wait
done
