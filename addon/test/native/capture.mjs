#!/usr/bin/env node
// Records the captures again: the messages between `ip` and the kernel, from strace, as hex with their command.
// usage: node test/support/isolated.mjs node addon/test/native/capture.mjs   (requires strace and iproute2)
// The line `# expect` of an existing capture is kept: it is written by hand, from `ip`'s own output.
import { Buffer } from 'node:buffer';
import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import process from 'node:process';
import { fileURLToPath } from 'node:url';

const FOLDER = join(dirname(fileURLToPath(import.meta.url)), 'captures');

/** In this order: each builds on those before it. The request is the last message that `ip` sends. */
const REQUESTS = {
  'link-add-veth':
    'ip link add name podw0 address ee:ee:ee:ee:ee:ee mtu 1450 type veth peer name eth0 address 02:00:00:00:00:01 mtu 1450 netns pod',
  'link-set': 'ip link set dev podw0 up mtu 1400 alias podwire group 7',
  'address-add-ipv4': 'ip address add 10.65.0.1/32 label podw0:a dev podw0',
  'address-add-ipv4-peer': 'ip address add 10.65.0.1 peer 10.65.0.9/32 dev podw0',
  'address-add-ipv6': 'ip address add fd00::1/128 dev podw0 nodad',
  'neighbour-add-ipv4': 'ip neighbour add 10.65.0.2 lladdr 02:00:00:00:00:01 dev podw0 nud permanent',
  'neighbour-add-ipv6': 'ip neighbour add fd00::2 lladdr 02:00:00:00:00:01 dev podw0 nud permanent',
  'neighbour-add-proxy': 'ip neighbour add proxy 10.65.0.3 dev podw0',
  'route-add-ipv4': 'ip route add 10.65.0.2/32 dev podw0 scope link protocol static',
  'route-add-ipv4-gateway':
    'ip route add 10.66.0.0/24 via 10.65.0.2 src 10.65.0.1 table 1000 metric 50 dev podw0 onlink protocol 80',
  'route-add-ipv6': 'ip route add fd00::2/128 dev podw0 metric 1024 protocol static',
  'route-add-ipv6-gateway': 'ip route add fd66::/64 via fd00::2 metric 1024 dev podw0 protocol static',
  'route-add-blackhole': 'ip route add blackhole 10.67.0.0/26 protocol 80',
  'route-add-unknown': 'ip route add 10.68.0.0/24 metric 9 dev podw0 mtu 1300 protocol static',
};

/** The kernel's answers. */
const REPLIES = {
  'link-list': 'ip -details link show',
  'address-list-ipv4': 'ip -4 address show',
  'address-list-ipv6': 'ip -6 address show',
  'route-list-ipv4': 'ip -4 route show table all',
  'route-list-ipv6': 'ip -6 route show table all',
  'neighbour-list-ipv4': 'ip -4 neighbour show nud all',
  'neighbour-list-ipv6': 'ip -6 neighbour show nud all',
};

/** Requests made after the lists above, so that these stay as they are. */
const LATER_REQUESTS = {
  'link-add-veth-queues':
    'ip link add name podw1 txqueuelen 300 numtxqueues 2 numrxqueues 3 type veth peer name eth1 txqueuelen 400 numtxqueues 4 numrxqueues 5 netns pod',
  'link-set-addrgenmode': 'ip link set dev podw1 addrgenmode none',
  'link-add-vxlan-ipv4':
    'ip link add name vx4 address 66:01:02:03:04:05 mtu 1400 type vxlan id 4096 local 10.65.0.1 dev podw0 ttl 9 nolearning dstport 4789',
  'link-add-vxlan-ipv6':
    'ip link add name vx6 type vxlan id 7 local fd00::1 dev podw0 learning udp6zerocsumtx udp6zerocsumrx dstport 8472',
  'link-add-ipip': 'ip link add name ipip0 type ipip local 10.65.0.1 remote 10.65.0.9 ttl 9 tos 1 pmtudisc',
  'neighbour-append-fdb-ipv4': 'bridge fdb append 66:0a:0b:0c:0d:0e dev vx4 dst 10.65.0.9 self permanent',
  'rule-add-ipv4': 'ip rule add from 10.65.0.1 priority 30087 lookup 1000 protocol 87',
  'rule-add-ipv6': 'ip -6 rule add from fd00::1 priority 30087 lookup 100 protocol 87',
  'rule-add-unknown': 'ip rule add not to 10.66.0.0/16 from 10.65.0.0/24 lookup 1000 fwmark 7 iif podw0',
  'qdisc-replace-tbf': 'tc qdisc replace dev podw1 root handle 5057: tbf rate 10mbit burst 62500 limit 93750',
  'neighbour-replace-fdb-ipv6': 'bridge fdb replace 66:0a:0b:0c:0d:0e dev vx6 dst fd00::9 self permanent',
};

const LATER_REPLIES = {
  'link-list-vxlan': 'ip -details link show type vxlan',
  'neighbour-list-fdb': 'bridge fdb show dev vx4',
  'rule-list-ipv4': 'ip -4 rule show',
  'rule-list-ipv6': 'ip -6 rule show',
  'qdisc-list': 'tc qdisc show',
};

/** The kernel of the captures has no IPIP. The test compares requests, and a refused request is complete. */
const REFUSED = ['link-add-ipip'];

/** The kernel's answers to refused requests of `ip`, with and without a text. */
const REFUSALS = {
  'acknowledgement-invalid-prefix': 'ip route add 10.0.0.1/8 dev lo',
  'acknowledgement-exists': 'ip route add blackhole 10.67.0.0/26 protocol 80',
};

/** Flows of both families, for the kernel to track and to list. */
const FLOWS = `nft add table inet seen
nft add chain inet seen input { type filter hook input priority 0; }
nft add rule inet seen input ct state new counter accept
ping -c 1 127.0.0.1
ping -c 1 ::1`;

const FLOW_LISTS = {
  'conntrack-list-ipv4': 'conntrack -L -f ipv4',
  'conntrack-list-ipv6': 'conntrack -L -f ipv6',
};

/** Sets and maps of nf_tables. */
const TABLE = `table inet podwire {
  chain egress { }
  set names { type ifname; timeout 1h; }
  set prefixes { type ipv4_addr; flags interval; }
  set allowed { type ifname . ipv4_addr; flags interval; }
  map verdicts { type ifname : verdict; }
  map hostports { type inet_proto . inet_service : ipv4_addr . inet_service; }
}`;

/** Each adds or deletes one element: the kernel numbers the elements of its lists differently. */
const ELEMENT_REQUESTS = {
  'elements-add-interval': 'nft add element inet podwire prefixes { 10.65.0.0/26 }',
  'elements-add-concatenated-interval': 'nft add element inet podwire allowed { podw0 . 10.65.0.0/26 }',
  'elements-add-verdict': 'nft add element inet podwire verdicts { podw0 : goto egress }',
  'elements-add-value': 'nft add element inet podwire hostports { udp . 53 : 10.65.0.2 . 5353 }',
};

const GENERATION = {
  'generation-get': 'nft list set inet podwire names',
};

const ELEMENT_DELETIONS = {
  'elements-delete-concatenated-interval': 'nft delete element inet podwire allowed { podw0 . 10.65.0.0/26 }',
};

const LAST = {
  'qdisc-delete': 'tc qdisc delete dev podw1 root',
  'rule-delete-ipv4': 'ip rule delete from 10.65.0.1 priority 30087 lookup 1000 protocol 87',
  'link-delete': 'ip link delete dev podw0',
};

/** The datagrams of one system call in a trace with dumps. */
function datagrams(trace, call) {
  const found = [];
  for (const line of trace.split('\n')) {
    if (/^\d*\s*\w+\(/.test(line))
      found.push({ call: /(\w+)\(/.exec(line)[1], peek: line.includes('MSG_PEEK'), hex: '' });
    const dump = /^ \| [0-9a-f]+ {2}((?:[0-9a-f]{2} {1,2})+)/.exec(line);
    if (dump) found.at(-1).hex += dump[1].replaceAll(' ', '');
  }
  return found.filter((entry) => entry.call === call && !entry.peek && entry.hex !== '').map((entry) => entry.hex);
}

function trace(command, mayFail = false) {
  const { status, stderr } = spawnSync(
    'strace',
    ['-e', 'trace=sendmsg,recvmsg', '-e', 'write=all', '-e', 'read=all', ...command.split(' ')],
    { encoding: 'utf8', maxBuffer: 2 ** 26 },
  );
  if (status !== 0 && !mayFail) throw new Error(`${command} failed:\n${stderr.split('\n').slice(-5).join('\n')}`);
  return stderr;
}

/** Numbers from linux/netfilter/nfnetlink.h and nf_tables.h; IPCTNL_MSG_CT_NEW is 0. */
const NFNL_SUBSYS_CTNETLINK = 1;
const NFNL_SUBSYS_NFTABLES = 10;
const [NFT_MSG_NEWSETELEM, NFT_MSG_DELSETELEM, NFT_MSG_NEWGEN] = [12, 14, 15];

/** RTM_NEW* and similar: the types of answers to a list request. */
const TYPES = {
  link: 16,
  address: 20,
  route: 24,
  neighbour: 28,
  rule: 32,
  qdisc: 36,
  acknowledgement: 2,
  conntrack: NFNL_SUBSYS_CTNETLINK << 8,
  generation: (NFNL_SUBSYS_NFTABLES << 8) | NFT_MSG_NEWGEN,
};

/** The first datagram of the answer; `ip` reads other lists before it. */
function answerTo(name, command, mayFail = false) {
  const type = TYPES[name.split('-')[0]];
  const isWanted = (hex) => Buffer.from(hex.slice(8, 12), 'hex').readUInt16LE() === type;
  return datagrams(trace(command, mayFail), 'recvmsg').find(isWanted);
}

/** The message about elements in a transaction of `nft`, without the begin and the end of it. */
function elementsOf(hex) {
  const bytes = Buffer.from(hex, 'hex');
  for (let at = 0; at < bytes.length; at += bytes.readUInt32LE(at)) {
    const type = bytes.readUInt16LE(at + 4) - (NFNL_SUBSYS_NFTABLES << 8);
    if (type !== NFT_MSG_NEWSETELEM && type !== NFT_MSG_DELSETELEM) continue;
    return bytes.subarray(at, at + bytes.readUInt32LE(at)).toString('hex');
  }
  throw new Error('no elements in the transaction');
}

function saveElementRequests(requests) {
  for (const [name, command] of Object.entries(requests))
    save('request', name, command, elementsOf(datagrams(trace(command), 'sendmsg').at(-1)));
}

/** As `captures/link/request-add-veth.hex`. */
function save(kind, name, command, hex) {
  const [object, ...rest] = name.split('-');
  const file = join(FOLDER, object, `${[kind, ...rest].join('-')}.hex`);
  mkdirSync(dirname(file), { recursive: true });
  const old = existsSync(file) ? readFileSync(file, 'utf8').split('\n') : [];
  const expected = old.filter((line) => line.startsWith('# expect '));
  const lines = hex.match(/.{1,64}/g);
  writeFileSync(file, [`# ${command}`, ...expected, ...lines, ''].join('\n'));
}

execFileSync('ip', ['netns', 'add', 'pod']);
for (const [name, command] of Object.entries(REQUESTS))
  save('request', name, command, datagrams(trace(command), 'sendmsg').at(-1));
for (const [name, command] of Object.entries(REPLIES)) save('reply', name, command, answerTo(name, command));
for (const [name, command] of Object.entries(LATER_REQUESTS)) {
  const traced = trace(command, REFUSED.includes(name));
  save('request', name, command, datagrams(traced, 'sendmsg').at(-1));
}
for (const [name, command] of Object.entries(LATER_REPLIES)) save('reply', name, command, answerTo(name, command));
for (const [name, command] of Object.entries(REFUSALS)) save('reply', name, command, answerTo(name, command, true));
for (const command of FLOWS.split('\n')) execFileSync(command.split(' ')[0], command.split(' ').slice(1));
for (const [name, command] of Object.entries(FLOW_LISTS)) save('reply', name, command, answerTo(name, command));
execFileSync('nft', [TABLE]);
saveElementRequests(ELEMENT_REQUESTS);
for (const [name, command] of Object.entries(GENERATION)) save('reply', name, command, answerTo(name, command));
saveElementRequests(ELEMENT_DELETIONS);
for (const [name, command] of Object.entries(LAST))
  save('request', name, command, datagrams(trace(command), 'sendmsg').at(-1));
process.stdout.write(`captures are in ${FOLDER}\n`);
