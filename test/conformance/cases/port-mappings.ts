import { spawn } from 'node:child_process';
import { once } from 'node:events';

import type { Bench, Call, Pod } from '../bench.js';
import type { Case, Occasion } from '../case.js';
import type { Namespace } from '../machine/namespace.js';
import { isObject } from '../specification/json.js';
import { newest } from './newest.js';

const SECTION = 'Conventions, portMappings';

const HOST_PORT = 18_443;
const CONTAINER_PORT = 8080;

/** Answers TCP connections and UDP packets with the name of the protocol. */
const SERVER = `
  const udp = require('node:dgram').createSocket('udp4');
  udp.on('message', (_, { port, address }) => udp.send('udp', port, address));
  const tcp = require('node:net').createServer((socket) => socket.on('error', () => undefined).end('tcp'));
  tcp.listen(${CONTAINER_PORT}, '0.0.0.0', () => udp.bind(${CONTAINER_PORT}, '0.0.0.0', () => process.stdout.write('ready')));`;

/** Prints the answer of the node's port, or nothing after two seconds. */
const CLIENT: Readonly<Record<string, string>> = {
  tcp: `require('node:net').connect(${HOST_PORT}, '127.0.0.1').on('error', () => process.exit()).pipe(process.stdout);`,
  udp: `
    const udp = require('node:dgram').createSocket('udp4').on('error', () => process.exit());
    udp.on('message', (answer) => process.stdout.write(answer, () => process.exit())).connect(${HOST_PORT}, '127.0.0.1',
      () => udp.send('question'));`,
};

/** Mappings that no plugin can carry out. */
const IMPOSSIBLE: Readonly<Record<string, object>> = {
  port: { hostPort: 65_536, containerPort: CONTAINER_PORT, protocol: 'tcp' },
  protocol: { hostPort: HOST_PORT, containerPort: CONTAINER_PORT, protocol: 'nonsense' },
  address: { hostPort: HOST_PORT, containerPort: CONTAINER_PORT, protocol: 'tcp', hostIP: 'nonsense' },
};

/** Ports of the node that lead to a container, for a configuration with that capability. */
export function portMappingCases({ subject }: Occasion): readonly Case[] {
  const { capabilities } = subject.template;
  if (!isObject(capabilities) || capabilities.portMappings !== true) return [];
  return [...Object.keys(CLIENT).map(leads), ...Object.keys(IMPOSSIBLE).map(refuses)];
}

function leads(protocol: string): Case {
  return {
    id: `port-mappings.${protocol}`,
    section: SECTION,
    level: 'SHOULD',
    title: `A ${protocol} port of the node leads to the container until DEL, also from the node's 127.0.0.1`,
    ask: async (bench) => {
      const mapping = { hostPort: HOST_PORT, containerPort: CONTAINER_PORT, protocol };
      const pod = reachable(bench);
      const call = callOf(bench, pod, mapping);
      const server = spawn('nsenter', [`--net=${pod.namespace.path}`, process.execPath, '-e', SERVER]);
      try {
        await once(server.stdout, 'data');
        await bench.add(call);
        bench.require(answer(bench.node, protocol) === protocol, 'the port does not lead to the container');
        await bench.del(call);
        bench.require(answer(bench.node, protocol) === '', 'the port leads to the container after DEL');
      } finally {
        server.kill('SIGKILL');
      }
    },
  };
}

function refuses(fault: string): Case {
  return {
    id: `port-mappings.impossible.${fault}`,
    section: SECTION,
    level: 'ADVICE',
    title: `ADD with a mapping whose ${fault} is impossible is refused, and leaves nothing`,
    ask: async (bench) => {
      const first = { pod: bench.pod(), version: newest(bench, '0.3.0') };
      await bench.add(first);
      await bench.del(first);
      const before = await bench.holdings();
      const pod = bench.pod();
      bench.expectError('ADD', await bench.call('ADD', callOf(bench, pod, { ...IMPOSSIBLE[fault] })));
      bench.expectPodEmpty('the refused ADD', pod);
      await bench.expectNothingLeft('the refused ADD', before);
    },
  };
}

const callOf = (bench: Bench, pod: Pod, mapping: object): Call => ({
  pod,
  version: newest(bench, '0.3.0'),
  config: { runtimeConfig: { portMappings: [mapping] } },
});

/** A container; one that earlier plugins have made gets a gateway, so that the node can send to it. */
function reachable(bench: Bench): Pod {
  const pod = bench.pod();
  if (pod.preceding) bench.node.ip('address', 'add', '192.0.2.1/24', 'dev', pod.preceding.far.name);
  return pod;
}

function answer(node: Namespace, protocol: string): string {
  const client = `setTimeout(() => process.exit(), 2000);${CLIENT[protocol]}`;
  return node.run(process.execPath, '-e', client);
}
