"""The laboratory: a guest with the kernel's Soft-RoCE in qemu. A tap joins it to the network namespace of this process.

Everything lasts as long as this process: `enter` puts it into namespaces of its own, as their first process, and the
kernel ends all others when it ends, in whatever way.
"""

import os
import re
import select
import signal
import socket
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
TARGET = os.path.join(ROOT, 'target/interop')
# The name of the interface, and with it of Weir's device.
INTERFACE = 'weir0'
WEIR, GUEST = {4: '10.77.0.9', 6: 'fd77::9'}, {4: '10.77.0.2', 6: 'fd77::2'}
DEVICE = {'weir': f'weir_{INTERFACE}', 'rxe': 'rxe0'}
# Weir's device in the guest.
GUEST_DEVICE = 'weir_eth0'
# Of the interfaces at first; the guest's cannot become larger.
LARGEST_MTU = 4500
# Packets that wait for the guest: its processor is emulated.
QUEUE = 20000
ENDED = re.compile(rb'@@ended (\d+)\r?\n')
# With ioeventfd or event_idx, queues stall under emulation.
NO_STALL = 'ioeventfd=off,event_idx=off'
NAMESPACES = 'WEIR_INTEROP_INSIDE'
# Programs of the guest.
PROGRAMS = ['ip', 'tc', 'rdma', 'ibv_devinfo', 'ibv_rc_pingpong', 'ibv_uc_pingpong', 'ibv_ud_pingpong',
            'ibv_srq_pingpong', 'rping', 'ucmatose', 'udaddy', 'ib_write_bw', 'ib_read_bw', 'ib_send_bw',
            'ib_atomic_bw', 'ib_write_lat', 'ib_read_lat', 'ib_send_lat', 'ib_atomic_lat']


class Failure(Exception):
    """The laboratory does not work; the text says what is wrong."""


def kernel():
    """The folder with the guest's kernel. The first call of all needs the network: it comes before `enter`."""
    return run(['sh', f'{HERE}/kernel.sh'], 300).strip()


def pack(folder, tools):
    """The guest's files, with the programs `tools` among them; `folder` is that of the kernel."""
    archive = os.path.join(TARGET, 'initramfs.gz')
    run(['sh', f'{HERE}/initramfs.sh', folder, archive, *map(program, PROGRAMS), *map(os.path.abspath, tools)],
        120)
    return archive


def enter():
    """Returns in a process of its own namespaces, as their first process. This process waits for it, and ends."""
    if NAMESPACES in os.environ:
        for name in [name for name in os.environ if name.startswith('WEIR_') and name != 'WEIR_LIB_DIR']:
            del os.environ[name]
        return
    os.environ[NAMESPACES] = '1'
    # The kernel ends the child if this process is killed. unshare ignores SIGINT and SIGTERM.
    child = subprocess.Popen(['setpriv', '--pdeathsig', 'KILL', '--', 'unshare', '--net', '--pid', '--fork',
                              '--kill-child', '--mount-proc', '--', sys.executable, *sys.argv])
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: (child.kill(), sys.exit(128 + number)))
    try:
        sys.exit(child.wait())
    except KeyboardInterrupt:
        child.kill()
        sys.exit(128 + signal.SIGINT)


class Lab:
    """A running guest, and this side of its network. A context manager."""

    def __init__(self, kernel, archive, tools, accelerator):
        self.kernel, self.archive, self.tools, self.accelerator = kernel, archive, tools, accelerator
        self.rest = b''
        self.mtu = None
        self.process = None
        self.log = os.path.join(TARGET, 'guest.log')

    def __enter__(self):
        try:
            self.start()
            self.wait(180)
            self.set_mtu(1500)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if self.process:
            self.process.kill()
            self.process.wait()
            self.serial.close()
        # It remains when qemu has ended, and the next guest makes another one.
        subprocess.run(['ip', 'link', 'delete', INTERFACE], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)

    def start(self):
        self.make_interface()
        ours, theirs = socket.socketpair()
        self.serial = ours
        version = os.listdir(f'{self.kernel}/lib/modules')[0]
        self.process = start(
            ['qemu-system-x86_64', '-accel', self.accelerator, '-cpu', 'max', '-smp', '1', '-m', '512', '-nodefaults',
             '-nographic', '-no-reboot', '-kernel', f'{self.kernel}/boot/vmlinuz-{version}', '-initrd', self.archive,
             '-append', 'console=ttyS0 panic=-1 quiet loglevel=4 mitigations=off tsc=nowatchdog',
             '-serial', f'file:{self.log}',
             '-chardev', f'socket,id=agent,fd={theirs.fileno()}',
             '-device', f'virtio-serial-pci,{NO_STALL}', '-device', 'virtserialport,chardev=agent',
             '-netdev', f'tap,id=net,ifname={INTERFACE},script=no,downscript=no',
             '-device', f'virtio-net-pci,netdev=net,mac=52:54:00:77:00:02,host_mtu={LARGEST_MTU},romfile=,{NO_STALL},'
                        'rx_queue_size=1024'],
            f'{self.log}.qemu', theirs)
        theirs.close()

    def make_interface(self):
        for command in ('link set lo up', f'tuntap add {INTERFACE} mode tap',
                        f'link set {INTERFACE} txqueuelen {QUEUE} mtu {LARGEST_MTU} up'):
            run(['ip', *command.split()], 10)

    def set_mtu(self, mtu):
        """Sets the MTU of both interfaces, and the addresses: the kernel forgets those of IPv6 below 1280."""
        if mtu == self.mtu:
            return
        ipv6 = mtu >= 1280
        run(['ip', 'link', 'set', INTERFACE, 'mtu', str(mtu)], 10)
        self.must(f'/usr/bin/ip link set eth0 mtu {mtu}')
        for version, length in ((4, 24), (6, 64)):
            if version == 4 or ipv6:
                flags = 'nodad' if version == 6 else ''
                run(['ip', 'address', 'replace', f'{WEIR[version]}/{length}', 'dev', INTERFACE, *flags.split()], 10)
                self.must(f'/usr/bin/ip address replace {GUEST[version]}/{length} dev eth0 {flags}')
        # Soft-RoCE gives up soon if this side's link address is not known.
        for version in (4, 6) if ipv6 else (4,):
            self.must(f'for i in $(seq 50); do ping -c 1 -W 1 {WEIR[version]} > /dev/null && exit 0; done; exit 1')
        self.gids = {version: self.gid_index(GUEST[version]) for version in (4, 6) if version == 4 or ipv6}
        self.mtu = mtu

    def gid_index(self, address, device='rxe0'):
        """The index of an address among the GIDs of a device of the guest."""
        packed = (b'\0' * 10 + b'\xff\xff' + socket.inet_aton(address) if '.' in address
                  else socket.inet_pton(socket.AF_INET6, address))
        wanted = ':'.join(f'{packed[at]:02x}{packed[at + 1]:02x}' for at in range(0, 16, 2))
        for _ in range(50):
            found = self.must(f'cd /sys/class/infiniband/{device}/ports/1/gids; '
                              f'grep -l {wanted} 0 1 2 3 4 5 6 7 || true')
            if found.strip():
                return int(found.split()[0])
            time.sleep(0.1)
        raise Failure(f'{device} has no GID {wanted}')

    def lose(self, percent):
        """Loses packets of RoCE that the guest sends; 0 for none. This side loses its own by --faults."""
        self.run('/usr/bin/tc qdisc del dev eth0 root')
        if not percent:
            return
        self.must('/usr/bin/tc qdisc add dev eth0 root handle 1: prio bands 4 priomap 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0')
        self.must(f'/usr/bin/tc qdisc add dev eth0 parent 1:4 handle 40: netem loss {percent}% limit 100000')
        for protocol, match in (('ip', 'ip'), ('ipv6', 'ip6')):
            prio = 4 if match == 'ip' else 6
            self.must(f'/usr/bin/tc filter add dev eth0 parent 1: protocol {protocol} prio {prio} u32 '
                      f'match {match} dport 4791 0xffff flowid 1:4')

    def run(self, command, limit=20):
        """Runs a command line in the guest; returns (status, output)."""
        try:
            self.serial.sendall(command.encode() + b'\n')
        except OSError as error:
            raise Failure(f'qemu has ended: {error}\n{self.console()}') from error
        return self.wait(limit)

    def must(self, command):
        """As `run`; the command must succeed. Returns its output."""
        status, output = self.run(command)
        if status:
            raise Failure(f'guest: {command}: status {status}: {output}')
        return output

    def wait(self, limit):
        """Waits for the end of what runs in the guest."""
        end, output = time.monotonic() + limit, self.rest
        while not (found := ENDED.search(output)):
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.serial], [], [], left)[0]:
                raise Failure(f'the guest does not respond: {output.decode(errors="replace")}\n{self.console()}')
            try:
                got = self.serial.recv(65536)
            except OSError:
                got = b''
            if not got:
                raise Failure(f'qemu has ended\n{self.console()}')
            output += got
        self.rest = output[found.end():]
        return int(found[1]), output[:found.start()].decode(errors='replace').replace('\r', '')

    def console(self):
        text = ''
        for path in (self.log, f'{self.log}.qemu'):
            if os.path.exists(path):
                with open(path, errors='replace') as file:
                    text += file.read()[-3000:]
        return text


def program(name):
    """The path of a program; those of iproute2 are not in every PATH."""
    for folder in [*os.environ.get('PATH', '').split(':'), '/usr/sbin', '/sbin']:
        if os.access(os.path.join(folder, name), os.X_OK):
            return os.path.join(folder, name)
    raise Failure(f'{name} is missing: scripts/need.sh interop installs what is needed')


def start(command, errors, inherited):
    """Starts qemu, with a socket that it inherits; its messages go to a file."""
    with open(errors, 'w') as file:
        try:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=file,
                                    pass_fds=[inherited.fileno()])
        except OSError as error:
            raise Failure(f'{command[0]}: {error}') from error


def run(command, limit):
    """Runs a command here; it must succeed. Returns its output."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, errors='replace', timeout=limit)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failure(f'{" ".join(command)}: {error}') from error
    if done.returncode:
        raise Failure(f'{" ".join(command)}: status {done.returncode}: {done.stdout}{done.stderr}')
    return done.stdout
