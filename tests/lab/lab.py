"""The lab: simulated DGX Spark hosts on this machine. See docs/lab.md."""

from __future__ import annotations

import argparse
import shutil
import sys

from dgxlab import access, cluster, disks, images, machine, model
from dgxlab.settings import CACHE, MAX_HOSTS, MODEL_FOLDER, OLD_IMAGE, SERVICE_IMAGE, SERVING_IMAGE, Host, hosts
from dgxlab.shell import LabError, in_parallel, inside, output, say

IMAGES = {OLD_IMAGE: images.old, SERVING_IMAGE: images.serving, SERVICE_IMAGE: images.service}
CACHE_FOLDERS = ["hosts", "wheels", "models", "debs", "rootfs-base", "rootfs-system"]
MUTATIONS = ["faulty", "no-arch", "no-reasoning", "sglang", "wrong-answer"]


def up(count: int, *, fresh: bool) -> None:
    """Make what is missing of at least `count` hosts. One that is current and runs stays as it is, unless `fresh`."""
    machine.prepare()
    wanted = hosts(max(count, len(cluster.existing())))
    host_image = images.host()
    stale = [host for host in wanted if fresh or not cluster.is_current(host, host_image)]
    if stale:
        access.close_connections(wanted)
        cluster.make_networks()
        in_parallel(lambda host: cluster.make(host, host_image), stale)
        cluster.start_state(stale)
    stopped = [host for host in wanted if host not in stale and not cluster.is_running(host)]
    for host in stopped:
        disks.mount(host)
    in_parallel(cluster.start, stopped)
    access.write(wanted)
    say("the hosts are up")
    fill_head(wanted, stale)
    say("done")


def fill_head(wanted: list[Host], fresh: list[Host]) -> None:
    """The serving images and the model are on the head only; the other hosts get them from there."""
    head = wanted[0]
    for image, make in ((OLD_IMAGE, images.old), (SERVING_IMAGE, images.serving)):
        cluster.load(head, make(), image)
    for host in fresh:
        model.clear(host)
    model.put_on(head, "")
    for host in fresh:
        cluster.mark_ready(host)


def reset() -> None:
    machine.need_root()
    if not cluster.existing():
        raise LabError("there is no lab; make it with `up`")
    up(1, fresh=True)


def down(*, purge: bool) -> None:
    machine.need_root()
    present = cluster.existing()
    access.close_connections(present)
    in_parallel(cluster.remove, present)
    cluster.remove_build_containers()
    cluster.remove_networks()
    for host in hosts(MAX_HOSTS):
        disks.unmount(host)
    access.forget()
    if purge:
        cluster.remove_images()
        remove_cache()


def remove_cache() -> None:
    """Only what the lab makes there: the folder is the user's choice."""
    for name in CACHE_FOLDERS:
        shutil.rmtree(CACHE / name, ignore_errors=True)
    if not [path for path in CACHE.iterdir() if path.name != "lock"]:
        shutil.rmtree(CACHE)


def load(name: str, image: str) -> None:
    host = host_named(name)
    if image not in IMAGES:
        raise LabError(f"the lab makes these images: {', '.join(IMAGES)}")
    cluster.load(host, IMAGES[image](), image)


def mutation(kind: str) -> None:
    head = cluster.existing()[0]
    if kind == "no-arch":
        cluster.make_image_without_architecture(head)
    elif kind == "faulty":
        cluster.make_faulty_image(head)
    elif kind == "sglang":
        cluster.make_sglang_image(head)
    else:
        model.put_on(head, kind)
        print(f"{MODEL_FOLDER}/{model.name(kind)}")


def status() -> None:
    for host in cluster.existing():
        state = output(["docker", "inspect", "-f", "{{.State.Status}}", host.container])
        addresses = " ".join(f"{network.interface}={host.address(network)}" for network in host.networks)
        print(f"{host.inventory_name} ({host.container}): {state} {addresses}")
        if state == "running":
            listing = inside(host.container, "docker", "ps", "-a", "--format", "{{.Names}}: {{.Status}}")
            listing += "\n" + inside(host.container, "docker", "image", "ls", "--format", "{{.Repository}}:{{.Tag}}")
            print("  " + listing.replace("\n", "\n  "))


def host_named(name: str) -> Host:
    for host in cluster.existing():
        if name in {host.container, host.inventory_name}:
            return host
    raise LabError(f"there is no lab host {name}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("up", help="make the lab, or what is missing of it")
    command.add_argument("--hosts", type=int, default=2, choices=range(1, MAX_HOSTS + 1))
    commands.add_parser("reset", help="bring all hosts back to their start state")
    command = commands.add_parser("down", help="remove the hosts and networks; the disks and images stay")
    command.add_argument("--purge", action="store_true", help="remove disks, images and the cache, too")
    commands.add_parser("status", help="show the hosts, their containers and images")
    command = commands.add_parser("load", help="give a host one of the lab's images")
    command.add_argument("host")
    command.add_argument("image")
    command = commands.add_parser("mutation", help="give the head a faulty model or image")
    command.add_argument("kind", choices=MUTATIONS)
    command = commands.add_parser("probe", help="what a machine outside the fabric sees of a port of the head")
    command.add_argument("port", type=int)
    return parser.parse_args()


def main() -> int:
    options = arguments()
    try:
        with machine.exclusive():
            if options.command == "up":
                up(options.hosts, fresh=False)
            elif options.command == "reset":
                reset()
            elif options.command == "down":
                down(purge=options.purge)
            elif options.command == "load":
                load(options.host, options.image)
            elif options.command == "mutation":
                mutation(options.kind)
            elif options.command == "probe":
                print(cluster.probe(host_named("spark-head"), options.port))
            else:
                status()
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
