"""One trial in which both programs run on Weir in the guest, in two network namespaces that a VLAN joins."""

import os
import re
import time

import cells
import trial

# The interfaces of the link, and the addresses of the VLAN's ends. The server has the first.
ENDS = {'server': ('vl0', '10.79.0.1'), 'client': ('vl1', '10.79.0.2')}
TAG = 5


def plan():
    """The pair of a setting and a cell."""
    return [(cells.Setting(1024, 4, 0), cells.VLAN)]


class Vlan:
    """Runs such trials in a laboratory."""

    def __init__(self, lab, folder):
        self.lab, self.folder = lab, folder
        self.inside = None

    def run(self, setting, cell, client):
        begin = time.monotonic()
        inside = self.inside or self.link()
        lines = {side: self.line(cell, side, inside) for side in ENDS}
        server = trial.GuestServer(self.lab, cell, lines['server'], cells.LIMIT)
        status, output = self.lab.run(f'timeout -k 2 {cells.LIMIT} {lines["client"]} 2>&1', cells.LIMIT + 30)
        programs = {'client': trial.Program(status, output), 'server': server.finish(status == 0)}
        failures = [f'{side}: status {program.status}: {program.output.strip()[-200:]}'
                    for side, program in programs.items() if program.status]
        if not failures and not re.search(r'^[1-9]\d* passed, 0 failed$', output, re.MULTILINE):
            failures.append('client does not say what passed')
        result = trial.Result(setting, cell, client, 'FAILED' if failures else 'passed', time.monotonic() - begin, failures)
        if failures:
            result.log = os.path.join(self.folder, 'vlan.txt')
            with open(result.log, 'w') as file:
                for side, program in programs.items():
                    file.write(f'{lines[side]}\n{side}: status {program.status}\n{program.output}\n')
        return result

    def link(self):
        """Makes the namespaces and the VLAN; returns how a command enters the client's."""
        self.lab.must("unshare -n -m sh -c 'mount -t sysfs sysfs /sys; echo $$ > /client.pid; exec sleep 100000' & "
                      'until test -s /client.pid; do sleep 0.1; done')
        inside = self.inside = f'nsenter -n -m -t {self.lab.must("cat /client.pid").strip()} '
        (near, _), (far, _) = ENDS.values()
        self.lab.must(f'/usr/bin/ip link add {near} type veth peer name {far}')
        self.lab.must(f'/usr/bin/ip link set {far} netns $(cat /client.pid)')
        for enter, (interface, address) in zip(('', inside), ENDS.values()):
            for words in ('link set lo up', f'link set {interface} up',
                          f'link add link {interface} name {interface}.{TAG} type vlan id {TAG}',
                          f'address add {address}/24 dev {interface}.{TAG}', f'link set {interface}.{TAG} up'):
                self.lab.must(f'{enter}/usr/bin/ip {words}')
        return inside

    @staticmethod
    def line(cell, side, inside):
        """The command line of one side."""
        interface, _ = ENDS[side]
        words = {'dev': f'weir_{interface}.{TAG}', 'port': cells.PORT, 'address': ENDS['server'][1]}
        enter = inside if side == 'client' else ''
        return f'{enter}weir run --log warn -- {cell.line} {getattr(cell, side)}'.format(**words)
