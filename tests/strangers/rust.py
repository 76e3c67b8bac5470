"""Examples of Rust crates, built from crates.io as `cargo install` does it."""

import functools

from bed import HERE, TARGET, Case, Failure, Skip, complete, fetch, need, need_files, of_program

LIMIT = 120
# On a busy machine.
BUILD_LIMIT = 1800
# A crate's examples have more dependencies than the crate, and a build shares what it can.
BUILD = {'CARGO_TARGET_DIR': str(TARGET / 'rust-build'), 'CARGO_INCREMENTAL': '0',
         # Of async-rdma's .cargo/config.toml, which an installation does not read.
         'JEMALLOC_SYS_WITH_MALLOC_CONF': 'narenas:1,tcache:false'}


def cases():
    ibverbs = functools.partial(example, 'ibverbs@0.9.2', '')
    sideway = functools.partial(example, 'sideway@0.4.3', '')
    async_rdma = functools.partial(example, 'async-rdma@0.5.0', 'cm,raw')
    pingpong = ('rc_pingpong', '--port', '18700', '--gid-idx', '1', '--size', '65536')
    return [
        Case('Rust, ibverbs: loopback', lambda bed: one(bed, ibverbs, 'loopback', 1, 'sent', 'received')),
        Case('Rust, sideway: ibv_devinfo', lambda bed: one(bed, sideway, 'ibv_devinfo', 0, 'weir_lo')),
        Case('Rust, sideway: show_gids', lambda bed: one(bed, sideway, 'show_gids', 0, 'weir_lo', '127.0.0.1')),
        Case('Rust, sideway: rc_pingpong', lambda bed: two(bed, sideway, *pingpong)),
        Case('Rust, sideway: rc_pingpong_split',
             lambda bed: two(bed, sideway, 'rc_pingpong_split', *pingpong[1:])),
        Case('Rust, async-rdma: devices', lambda bed: one(bed, async_rdma, 'devices', 0, 'weir_lo')),
        Case('Rust, async-rdma: rpc', lambda bed: one(bed, async_rdma, 'rpc', 1, 'response: hello', 'response: world')),
        Case('Rust, async-rdma: cm_server, cm_client',
             lambda bed: connected(bed, async_rdma, 'cm_server', 'cm_client', '127.0.0.1', '7471')),
    ]


def one(bed, crate, name, users, *wanted):
    """A program that needs no other; `users` processes send packets."""
    only_on_weir(bed)
    ended = bed.run([crate(name)], f'Rust {name}', LIMIT)
    return of_program(ended, LIMIT, users, *wanted)


def two(bed, crate, name, *options):
    """A server, and a client that has the server's address as last argument; both print the rate."""
    only_on_weir(bed)
    program = crate(name)
    ended = bed.run(['python3', HERE / 'server_client.py', '18700', program, *options], f'Rust {name}', LIMIT)
    return of_program(ended, LIMIT, 2, 'both have ended well')


def connected(bed, crate, server, client, *options):
    """A server that listens on port 7471 by librdmacm, and its client. Both must end well."""
    only_on_weir(bed)
    # The service ID has the port. The flag says that the socket accepts connections.
    listens = "grep -q '^[^ ]* [^ ]* [^ ]* 00010000 .*@weir/service/1061d2f$' /proc/net/unix"
    script = f'"$0" & s=$!; until {listens}; do kill -0 $s || exit 1; sleep 0.1; done; "$@" && wait $s'
    ended = bed.run(['sh', '-c', script, crate(server), crate(client), *options], f'Rust {server}', LIMIT)
    return of_program(ended, LIMIT, 2, f'{server}: end', f'{client}: end', 'recv :', 'recv:')


def only_on_weir(bed):
    if bed.other_transport:
        raise Skip('it has no other transport')


def example(crate, features, name):
    """The program of an example of `crate` (`name@version`)."""
    need('cargo', 'cmake', 'cc', 'pkg-config')
    if crate.startswith('async-rdma'):
        need_files('/usr/include/rdma/rdma_cma.h')
    folder = TARGET / f'rust-{crate.replace("@", "-")}'
    with complete(folder) as missing:
        if missing:
            fetch(['cargo', 'install', '--quiet', '--locked', '--debug', '--root', folder, '--examples', '--features',
                   features, crate], BUILD, BUILD_LIMIT, Failure)
    return folder / 'bin' / name
