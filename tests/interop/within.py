"""One trial in which both programs run on Soft-RoCE in the guest, under a layer of Weir's over rdma-core's libibverbs.

Without loss, both programs use one device. With loss, each has a device at one end of a link (veth) that loses packets.
What `weir doctor` reports is compared with the program's options and with the counters of Soft-RoCE.
"""

import json
import os
import re
import time

import cells
import lab as laboratory
import layers
import trial

# The ends of the link that loses packets: interface, address, device; the first is the client's.
ENDS = (('veth0', '10.78.0.1', 'rxe1'), ('veth1', '10.78.1.1', 'rxe2'))
SIDES = ('client', 'server')
# A machine that is busy for a moment delays a request as a lost packet does. What is wrong in each try is wrong.
TRIES = 3
# Of the repetitions that the kernel counts, so many have a request with a finding.
LEAST = 0.4
# Counters of Soft-RoCE: repetitions, RNR NAKs, and SENDs and receives that completed.
REPEATED, NOT_READY, SENDS, RECEIVES = 'completer_retry_err', 'rcvd_rnr_err', 'rdma_sends', 'rdma_recvs'
# A program with one READ at a time sends none out of sequence: what is, is a guard's empty READ behind a lost one.
REVEALED = 'out_of_seq_request'


class Within:
    """Runs such trials in a laboratory."""

    def __init__(self, lab, folder):
        self.lab, self.folder = lab, folder
        self.link = None
        os.makedirs(folder, exist_ok=True)

    def run(self, setting, cell, client):
        begin = time.monotonic()
        devices = self.lossy_link(setting.loss) if setting.loss else dict.fromkeys(SIDES, ('rxe0', self.lab.gids[4]))
        lines = {side: line(cell, side, *devices[side]) for side in SIDES}
        for _ in range(TRIES):
            before = self.counters()
            programs = self.both(cell, lines)
            counted = difference(self.counters(), before)
            processes = {}
            failures, wrong, reports = self.failures(setting, cell, programs, devices, counted, processes)
            if failures or not wrong:
                break
        failures = failures or wrong
        verdict = 'FAILED' if failures else 'passed'
        result = trial.Result(setting, cell, client, verdict, time.monotonic() - begin, failures)
        if setting.loss and len(processes) == len(SIDES):
            result.seen = [f'{side}: {seen(cell, processes[side], counted[devices[side][0]])}' for side in SIDES
                           if getattr(cell, f'{side}_work').requests]
        if failures:
            result.log = os.path.join(self.folder, re.sub(r'\W+', '-', result.name()) + '.txt')
            with open(result.log, 'w') as file:
                for side, program in programs.items():
                    file.write(f'{lines[side]}\n{side}: status {program.status}\n{program.output}{reports[side]}\n')
                file.write(json.dumps(counted, indent=1))
        return result

    def lossy_link(self, percent):
        """The devices of a link within the guest that loses packets in both directions, with their GIDs, by side."""
        if self.link is None:
            self.lab.must('/usr/bin/ip link add veth0 type veth peer name veth1')
            # A packet to an address of this machine takes the link all the same, and the other end accepts it.
            self.lab.must('/usr/bin/ip rule add pref 100 lookup local; /usr/bin/ip rule del pref 0')
            for interface, address, device in ENDS:
                self.lab.must(f'echo 1 > /proc/sys/net/ipv4/conf/{interface}/accept_local')
                self.lab.must(f'/usr/bin/ip address add {address}/24 dev {interface}')
                self.lab.must(f'/usr/bin/ip link set {interface} up')
                self.lab.must(f'rdma link add {device} type rxe netdev {interface}')
            for table, (near, far) in enumerate((ENDS, ENDS[::-1]), 10):
                self.lab.must(f'/usr/bin/ip rule add pref 10 iif lo to {far[1]} lookup {table}')
                self.lab.must(f'/usr/bin/ip route add {far[1]} dev {near[0]} src {near[1]} table {table}')
                link_address = self.lab.must(f'cat /sys/class/net/{far[0]}/address').strip()
                self.lab.must(f'/usr/bin/ip neigh replace {far[1]} dev {near[0]} lladdr {link_address} nud permanent')
            self.link = {side: (device, self.lab.gid_index(address, device))
                         for side, (_, address, device) in zip(SIDES, ENDS)}
        for interface, _, _ in ENDS:
            self.lab.must(f'/usr/bin/tc qdisc replace dev {interface} root netem loss {percent}% limit 10000')
        return self.link

    def both(self, cell, lines):
        """Runs server and client; how they ended."""
        limit = cells.LIMIT
        # What a program that was killed has left would fill the guest's memory.
        self.lab.run('rm -rf /tmp/weir-doctor-* /client.json /server.json')
        server = trial.GuestServer(self.lab, cell, lines['server'], limit)
        status, output = self.lab.run(f'timeout -k 2 {limit} {lines["client"]} 2>&1', limit + 30)
        return {'client': trial.Program(status, output), 'server': server.finish(status == 0)}

    def counters(self):
        """The counters of Soft-RoCE, by device and name."""
        text = self.lab.must('cd /sys/class/infiniband; grep -r . rxe*/ports/1/hw_counters/')
        found = {}
        for device, name, value in re.findall(r'^(\w+)/ports/1/hw_counters/(\w+):(\d+)$', text, re.MULTILINE):
            found.setdefault(device, {})[name] = int(value)
        return found

    def failures(self, setting, cell, programs, devices, counted, processes):
        """What is wrong, as lines; findings that are wrong, as lines; and the reports by side, as text. Fills in what
        the reports have of the processes."""
        found, wrong, reports = [], [], dict.fromkeys(SIDES, '')
        for side, program in programs.items():
            if program.status:
                last = [line.strip() for line in program.output.splitlines() if line.strip()][-2:]
                by_chance = trial.closed_by_chance(cell, program)
                (wrong if by_chance else found).append(f'{side}: status {program.status}: {" | ".join(last)}')
        if not found and not wrong and cell.says not in programs['client'].output:
            found.append(f'client does not say "{cell.says}"')
        revealed = counted[devices['server'][0]][REVEALED]
        if cell.layer == layers.GUARD and setting.loss and cell.operation == 'READ' and not revealed:
            wrong.append('the guard has revealed no lost READ')
        if cell.layer != layers.DOCTOR or found or wrong:
            return found, wrong, reports
        for side in SIDES:
            _, reports[side] = self.lab.run(f'cat /{side}.json')
            try:
                processes[side], = json.loads(reports[side])['processes']
            except (ValueError, KeyError) as error:
                return [f'{side}: there is no report, or it has not one process: {error}'], wrong, reports
        found += [f'{side}: {text}' for side in SIDES
                  for text in miscounted(processes[side], devices[side][0], getattr(cell, f'{side}_work'))]
        found += disagreeing(cell, processes, devices, counted)
        for side in SIDES:
            judge = missing if setting.loss else needless
            device, work = devices[side][0], getattr(cell, f'{side}_work')
            wrong += [f'{side}: {text}' for text in judge(cell, processes[side], work, counted[device])]
        return found, wrong, reports


def line(cell, side, device, gid):
    """The command line of one side. The programs' own TCP connection is another than RoCE's."""
    host = laboratory.GUEST[4]
    words = {'dev': device, 'gid': gid, 'port': cells.PORT, 'host': host, 'address': host, 'report': f'/{side}.json'}
    return f'{cell.layer} {cell.line} {getattr(cell, side)}'.format(**words)


def difference(after, before):
    return {device: {name: value - before.get(device, {}).get(name, 0) for name, value in counters.items()}
            for device, counters in after.items()}


def miscounted(process, device, work):
    """In what the report of a process is not what the program did."""
    seen = {name: process.get(name) for name in ('devices', 'qps', 'posted', 'completed', 'received')}
    right = {'devices': [device], 'qps': 1, 'posted': work.requests, 'completed': work.requests,
             'received': work.receives}
    yield from (f'{name} is {seen[name]}, should be {right[name]}' for name in seen if seen[name] != right[name])
    # A server that only answers READs is not told from a program that posts without libibverbs.
    notes = [note for note in process['notes'] if work != layers.Work() or 'posted nothing' not in note]
    yield from (f'note: {note}' for note in notes)


def disagreeing(cell, processes, devices, counted):
    """Counts of the reports that are not those of the kernel. It also counts the datagrams of connection management."""
    if cell.cm:
        return
    kernel = [counted[device] for device in {device for device, _ in devices.values()}]
    for name, of in ((SENDS, 'completed'), (RECEIVES, 'received')):
        if name == SENDS and cell.operation != 'SEND':
            continue
        reported, right = sum(process[of] for process in processes.values()), sum(counts[name] for counts in kernel)
        if reported != right:
            yield f'the reports have {reported} {of}, the kernel counts {right} ({name})'


def needless(cell, process, _, counts):
    """Findings in a run without loss for which the kernel counts no cause. Soft-RoCE repeats now and then all the same:
    its timer does not begin with each request."""
    causes = {'timeout': counts[REPEATED], 'rnr_wait': counts[NOT_READY]}
    for finding in process['findings']:
        # A thread that sleeps gets the emulated processor late. The report says that it is no more certain than this.
        waited = cell.sleeps and finding['kind'] == 'rnr_wait' and finding['confidence'] <= 0.5
        if not waited and not causes.get(finding['kind']):
            yield f'found {finding["kind"]} ({finding["what"]}); the kernel counts {counts[REPEATED]} repetitions, ' \
                  f'{counts[NOT_READY]} RNR NAKs'


def missing(cell, process, work, counts):
    """How the requests with findings disagree with the repetitions that the kernel counts."""
    found, repeated = requests_found(cell, process), counts[REPEATED]
    for finding in process['findings']:
        if finding['kind'] not in found:
            yield f'found {finding["kind"]} ({finding["what"]})'
    if work.requests and not repeated:
        yield 'the link has lost nothing'
    elif found['timeout'] > repeated or repeated and not found['timeout']:
        yield seen(cell, process, counts)
    elif sum(found.values()) < LEAST * repeated:
        # Few are lost twice. Of the others a short delay may have no finding.
        yield f'{seen(cell, process, counts)}: too few requests'


def requests_found(cell, process):
    """Requests with a finding that lost packets explain, by its kind. Soft-RoCE's timer does not begin with each
    request, so that the delays of some lost SENDs are as after an RNR NAK."""
    kinds = ('timeout', 'rnr_wait') if cell.operation == 'SEND' else ('timeout',)
    return {kind: sum(finding['requests'] for finding in process['findings'] if finding['kind'] == kind)
            for kind in kinds}


def seen(cell, process, counts):
    found = ', '.join(f'{count} requests with {kind}' for kind, count in requests_found(cell, process).items())
    return f'{found}; the kernel counts {counts[REPEATED]} repetitions'
