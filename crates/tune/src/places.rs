//! CPUs and NUMA nodes on which the sides can run.

use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;
use weir_lab::stream::Place;

/// Where both sides run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Placement {
    pub name: String,
    pub sender: Place,
    pub receiver: Place,
}

/// The CPUs and nodes of this host.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Machine {
    /// CPUs that this process may use, ascending.
    pub cpus: Vec<u32>,
    /// The CPUs that share a core with each CPU, itself included, in the order of `cpus`.
    pub siblings: Vec<Vec<u32>>,
    /// NUMA nodes that have such CPUs.
    pub nodes: Vec<u32>,
    /// The node to which the adapter is connected, if the kernel says so.
    pub adapter_node: Option<u32>,
}

/// The sides that run on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Here {
    Both,
    /// The receiver is on a peer, and its CPUs are not known.
    Sender,
}

impl Machine {
    /// This host, with an adapter of this name if there is one.
    pub fn here(device: Option<&str>) -> Machine {
        Machine::below(Path::new("/"), device)
    }

    fn below(root: &Path, device: Option<&str>) -> Machine {
        let read = |path: &str| fs::read_to_string(root.join(path)).ok();
        let status = read("proc/self/status").unwrap_or_default();
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        let cpus = allowed.map(cpu_list).unwrap_or_default();
        let siblings = |cpu: &u32| {
            let path = format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
            read(&path).map_or_else(|| vec![*cpu], |text| cpu_list(&text))
        };
        let nodes = read("sys/devices/system/node/online").map_or_else(Vec::new, |text| cpu_list(&text));
        let has_cpus = |node: &u32| {
            let list = read(&format!("sys/devices/system/node/node{node}/cpulist"));
            list.is_some_and(|text| cpu_list(&text).iter().any(|cpu| cpus.contains(cpu)))
        };
        // It is -1 on machines with one node.
        let adapter_node = device
            .and_then(|name| read(&format!("sys/class/infiniband/{name}/device/numa_node")))
            .and_then(|text| text.trim().parse().ok());
        Machine {
            siblings: cpus.iter().map(siblings).collect(),
            nodes: nodes.into_iter().filter(has_cpus).collect(),
            cpus,
            adapter_node,
        }
    }

    /// The placements to compare; the first is as the kernel chooses. Empty if there is no choice.
    pub fn placements(&self, here: Here) -> Vec<Placement> {
        let Some((&first, &second)) = self.cpus.last().zip(self.other_core()) else { return vec![] };
        let cpu = |number: u32| Place { cpus: Some(number.to_string()), node: None };
        let node = |number: u32| Place { cpus: None, node: Some(number) };
        let any = Place::default;
        let of = |name: String, sender: Place, receiver: Place| Placement { name, sender, receiver };
        let mut all = vec![of("as the kernel chooses".into(), any(), any())];
        if here == Here::Sender {
            all.push(of(format!("sender on CPU {first}"), cpu(first), any()));
            let nodes = self.nodes.iter().filter(|_| self.nodes.len() > 1);
            all.extend(nodes.map(|n| of(format!("sender on node {n}"), node(*n), any())));
            return all;
        }
        all.push(of(format!("receiver on CPU {first}"), any(), cpu(first)));
        all.push(of(format!("sender on CPU {first}"), cpu(first), any()));
        all.push(of(format!("sender on CPU {second}, receiver on CPU {first}"), cpu(second), cpu(first)));
        all.push(of(format!("both on CPU {first}"), cpu(first), cpu(first)));
        if let [a, b, ..] = self.nodes[..] {
            let near = self.adapter_node.filter(|n| self.nodes.contains(n)).unwrap_or(a);
            let far = if near == a { b } else { a };
            all.push(of(format!("both on node {near}"), node(near), node(near)));
            all.push(of(format!("both on node {far}"), node(far), node(far)));
            all.push(of(format!("sender on node {near}, receiver on node {far}"), node(near), node(far)));
            all.push(of(format!("sender on node {far}, receiver on node {near}"), node(far), node(near)));
        }
        all
    }

    /// A CPU of another core than the last CPU; of the same core if there is only one.
    fn other_core(&self) -> Option<&u32> {
        let (last, siblings) = (self.cpus.last()?, self.siblings.last()?);
        let others = || self.cpus.iter().rev().filter(|cpu| *cpu != last);
        others().find(|cpu| !siblings.contains(cpu)).or_else(|| others().next())
    }
}

/// The numbers of a list such as "0-3,8".
fn cpu_list(text: &str) -> Vec<u32> {
    let range = |part: &str| {
        let (from, to) = part.trim().split_once('-').unwrap_or((part.trim(), part.trim()));
        Some(from.parse::<u32>().ok()?..=to.parse::<u32>().ok()?.min(1 << 16))
    };
    text.split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(cpus: &[u32], nodes: &[u32]) -> Machine {
        let siblings = cpus.iter().map(|cpu| vec![cpu & !1, cpu | 1]).collect();
        Machine { cpus: cpus.to_vec(), siblings, nodes: nodes.to_vec(), adapter_node: Some(1) }
    }

    #[test]
    fn two_cores_are_not_threads_of_one() {
        let names: Vec<String> =
            machine(&[0, 1, 2, 3], &[0]).placements(Here::Both).into_iter().map(|p| p.name).collect();
        assert_eq!(names.len(), 5);
        assert_eq!(names[3], "sender on CPU 1, receiver on CPU 3");
        assert!(machine(&[5], &[0]).placements(Here::Both).is_empty());
    }

    #[test]
    fn nodes_are_compared_if_there_are_several_and_only_on_this_side_with_a_peer() {
        let all = machine(&[0, 1, 2, 3], &[0, 1]).placements(Here::Both);
        assert_eq!(all.len(), 9);
        assert_eq!(all[5].name, "both on node 1");
        let sender = machine(&[0, 1, 2, 3], &[0, 1]).placements(Here::Sender);
        assert!(sender.len() == 4 && sender.iter().all(|p| p.receiver == Place::default()));
    }

    #[test]
    fn the_machine_is_read_from_sys_and_proc() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("proc/self/status", "Name:\tx\nCpus_allowed_list:\t0-1,3\n");
        write("sys/devices/system/node/online", "0-2\n");
        write("sys/devices/system/node/node0/cpulist", "0-1\n");
        write("sys/devices/system/node/node1/cpulist", "2-3\n");
        write("sys/devices/system/node/node2/cpulist", "\n");
        write("sys/devices/system/cpu/cpu0/topology/thread_siblings_list", "0-1\n");
        write("sys/class/infiniband/mlx5_0/device/numa_node", "1\n");
        write("sys/class/infiniband/rxe0/device/numa_node", "-1\n");
        let machine = Machine::below(root.path(), Some("mlx5_0"));
        assert_eq!(
            (&machine.cpus[..], &machine.nodes[..], machine.adapter_node),
            (&[0, 1, 3][..], &[0, 1][..], Some(1))
        );
        assert_eq!(machine.siblings, [vec![0, 1], vec![1], vec![3]]);
        assert_eq!(Machine::below(root.path(), Some("rxe0")).adapter_node, None);
        assert_eq!(Machine::below(&root.path().join("none"), None), Machine::default());
    }
}
