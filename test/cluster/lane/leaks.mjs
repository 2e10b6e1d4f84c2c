// "Nothing leaked": leftovers of pods on a node's kernel and disk and in IPAM, compared with the state before they came.
import { until } from './wait.mjs';

/** Blackholes and routes to other nodes' blocks stay with the blocks; link-local addresses change at a reboot. */
const NOT_OF_PODS =
  /^blackhole |^unreachable |via 198\.18\.|via fd00:18:|^default |proto kernel metric 256 pref|^multicast |fe80::\S* dev (eth0|vxlan)|via \S+ dev vxlan/;

/** The kubelet removes the sandboxes of pods that it no longer knows once a minute, their containers first. */
const LEAK_TIMEOUT_SECONDS = 150;

const COMMANDS = {
  links: 'ip -o link | cut -d: -f2 | cut -d@ -f1',
  routes: 'ip -4 route show table all; ip -6 route show table all',
  rules: 'ip -4 rule; ip -6 rule',
  'packet filter': 'nft -s list ruleset',
  neighbours: 'ip neigh show nud permanent',
  'network namespaces': 'ls /run/netns',
  files: 'find /var/lib/cni /var/lib/podwire /run/podwire -type f 2>/dev/null',
};

/** State that the node has without pods too, until the uninstall. 87 is the protocol of Podwire's routes. */
const NODE_COMMANDS = {
  'routes of the node': 'ip -4 route show table all proto 87; ip -6 route show table all proto 87',
  tables: 'nft list tables | grep -i podw',
  folders: 'ls -d /run/podwire /var/lib/podwire 2>/dev/null',
  'CNI files': 'find /opt/cni/bin /etc/cni/net.d -type f',
};

/** portmap keeps its rule for marked packets, of no pod, in a chain of iptables or of nftables. */
const OF_PORTMAP = /0x0*2000\b/;

/** kube-proxy has a table in nftables mode, and chains in iptables mode. */
const OF_KUBE_PROXY = /^(table .*kube-proxy|chain KUBE-)/;

/**
 * Lines of rules and set elements; tables and chains that a plugin keeps empty are no leak, as the rules of host ports. The
 * kernel removes elements with a timeout: they end a minute after their pod.
 */
function rulesOf(text) {
  const lines = [];
  let [table, chain, expires] = ['', '', false];
  for (const line of text.split('\n').map((each) => each.trim())) {
    if (line.startsWith('table ')) [table, chain] = [line, ''];
    if (line.startsWith('chain ')) chain = line;
    if (/^(set|map|chain) /.test(line)) expires = false;
    if (/^flags .*timeout/.test(line)) expires = true;
    if (expires) continue;
    const hasHostPorts = table.includes('podwire_hostports');
    const isOfPods = hasHostPorts
      ? line.includes('elements')
      : /dnat|snat|masquerade|"podw/.test(line) && !OF_PORTMAP.test(line);
    if (isOfPods && ![table, chain].some((each) => OF_KUBE_PROXY.test(each))) lines.push(line);
  }
  return lines;
}

/** Files that stay without pods, or change without them. */
const NOT_FILES_OF_PODS = /\.(mdb|lock)$|(node-ready|recent-commands)$|network-polic.*\.bin$|\/ipam\/|\/lock$/;

/** A renewed certificate is in a folder of another name. */
function filesOf(lines) {
  const ofPods = lines.filter((line) => !NOT_FILES_OF_PODS.test(line));
  return ofPods.map((line) => line.replace(/\/\.version-\w+\//, '/.version/'));
}

function linesOf(name, text) {
  if (name === 'packet filter') return rulesOf(text);
  const lines = text
    .split('\n')
    .map((line) => line.trim())
    .filter(Boolean);
  if (name === 'routes') return lines.filter((line) => !NOT_OF_PODS.test(line));
  if (name === 'files') return filesOf(lines);
  return lines;
}

function onNode(node, commands) {
  const found = {};
  for (const [name, command] of Object.entries(commands)) {
    found[name] = linesOf(name, node.machine.enter(['sh', '-c', command]).stdout).sort();
  }
  return found;
}

/** State of pods on each node, by name. */
export function footprint(cluster, commands = COMMANDS) {
  return Object.fromEntries(cluster.nodes.map((node) => [node.name, onNode(node, commands)]));
}

/** State of pods and of Podwire on each node. */
export function wholeFootprint(cluster) {
  return footprint(cluster, { ...COMMANDS, ...NODE_COMMANDS });
}

/** The runtime removes a sandbox a moment after its pod is gone, and the node returns its addresses some seconds later. */
export async function settledFootprint(cluster) {
  const ofPods = (lines) => lines.some((line) => /^podw|"podw\w|\/attachments\/.*\.json$/.test(line));
  const isFree = (parts) =>
    parts['network namespaces'].length === 0 &&
    ['links', 'packet filter', 'files'].every((name) => !ofPods(parts[name]));
  const settled = () => Object.values(footprint(cluster)).every(isFree);
  await until('sandboxes to go', settled, 60);
  return footprint(cluster);
}

function differences(before, after) {
  const found = [];
  for (const [node, parts] of Object.entries(after)) {
    for (const [name, lines] of Object.entries(parts)) {
      const more = lines.filter((line) => !before[node][name].includes(line));
      const less = before[node][name].filter((line) => !lines.includes(line));
      found.push(...more.map((line) => `${node}: ${name}: left: ${line}`));
      found.push(...less.map((line) => `${node}: ${name}: lost: ${line}`));
    }
  }
  return found;
}

/** Handles that podwire-ipam keeps without pods: addresses of tunnels, and leases, which the nodes' next pods get. */
export const NOT_OF_PODS_IN_IPAM = /-tunnel-addr-|^podwire-lease\./;

/** State of pods in podwire-ipam, once the nodes have returned the addresses of deleted ones. */
async function ipamFaults(cluster) {
  const list = async (kind) => JSON.parse(await cluster.podwire.podwirectl(['get', kind, '-A', '-o', 'json'])).items;
  const left = await list('workloadendpoints');
  const handles = (await list('handles')).map(({ metadata }) => metadata.name);
  // The exit code 4 of a finding is an error of `podwirectl`.
  await cluster.podwire.podwirectl(['audit', '--timeout', '30s']);
  const faults = left.map((endpoint) => `IPAM: endpoint left: ${JSON.stringify(endpoint).slice(0, 300)}`);
  const ofPods = handles.filter((handle) => !NOT_OF_PODS_IN_IPAM.test(handle));
  faults.push(...ofPods.map((handle) => `IPAM: handle left: ${handle}`));
  for (const { name } of cluster.nodes) {
    const journal = JSON.parse(await cluster.podwire.podwirectlOn(name, ['journal', 'list', '-o', 'json']));
    const entries = Array.isArray(journal) ? journal : (journal.entries ?? []);
    faults.push(...entries.map((entry) => `${name}: journal: ${JSON.stringify(entry).slice(0, 300)}`));
  }
  return faults;
}

/** @throws Error with everything that is left after the grace time */
export async function expectNothingLeaked(cluster, before) {
  await expectNoFaults(async () => {
    const found = differences(before, footprint(cluster));
    return found.length > 0 ? found : ipamFaults(cluster);
  });
}

/** @throws Error when the nodes are not as `before`, which is a whole footprint */
export async function expectUntouched(cluster, before) {
  await expectNoFaults(() => differences(before, wholeFootprint(cluster)));
}

async function expectNoFaults(find) {
  let faults = [];
  const isClean = async () => {
    faults = await find();
    return faults.length === 0;
  };
  await until('nothing leaked', isClean, LEAK_TIMEOUT_SECONDS, () => `\n${faults.slice(0, 12).join('\n')}`);
}
