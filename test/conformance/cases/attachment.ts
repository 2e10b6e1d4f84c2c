import type { Bench } from '../bench.js';
import type { Case, Occasion } from '../case.js';
import { steadyText } from '../machine/namespace.js';
import { isObject, parseJson } from '../specification/json.js';
import { readResult } from '../specification/result.js';
import { newest } from './newest.js';

/** ADD that cannot work, and repeated ADD. */
export function attachmentCases({ subject }: Occasion): readonly Case[] {
  const makesInterface = subject.kind === 'interface' && subject.makesInterface;
  return [
    ...(makesInterface ? [existingInterface(), takenNamespace()] : []),
    ...(subject.kind === 'interface' ? deadNamespaces() : []),
    ...(subject.kind === 'interface' && subject.template.ipam !== undefined ? [failureKeepsNoAddress()] : []),
    twice(),
    ...(subject.givesDistinctAddresses && subject.kind !== 'meta' ? [distinct()] : []),
    ...(makesInterface ? [secondInterface()] : []),
  ];
}

function existingInterface(): Case {
  return {
    id: 'add.interface-exists',
    section: '2 ADD',
    level: 'MUST',
    title: 'ADD of an interface name that is already taken fails, and leaves that interface unchanged',
    ask: async (bench) => {
      const version = newest(bench);
      const pod = bench.pod();
      bench.foreignInterface(pod);
      const before = steadyText(pod.namespace.links());
      bench.expectError('ADD', await bench.call('ADD', { pod, version }));
      const after = steadyText(pod.namespace.links());
      bench.require(after === before, `the existing interface has changed: ${after} after ${before}`);
    },
  };
}

function takenNamespace(): Case {
  return {
    id: 'add.interface-of-another',
    section: '2 ADD',
    level: 'MUST',
    title: 'ADD for another container of an interface that the plugin made before fails, and harms nothing of it',
    ask: async (bench) => {
      const version = newest(bench);
      const owner = bench.pod();
      await bench.add({ pod: owner, version });
      const mac = owner.namespace.link(bench.occasion.subject.interfaceName)?.mac;
      const pod = { ...bench.pod(), namespace: owner.namespace };
      bench.expectError('ADD', await bench.call('ADD', { pod, version }));
      const link = owner.namespace.link(bench.occasion.subject.interfaceName);
      bench.require(link?.mac === mac, "the other container's interface is no longer what it was");
    },
  };
}

function deadNamespaces(): readonly Case[] {
  const paths = { absent: () => '/run/netns/conformance-nowhere', file: (bench: Bench) => bench.leases };
  return Object.entries(paths).map(([id, path]) => ({
    id: `add.netns.${id}`,
    section: '2 ADD',
    level: 'MUST',
    title: id === 'absent' ? 'ADD into a namespace that is not there fails' : 'ADD into a plain file fails',
    ask: async (bench) => {
      const call = { pod: bench.pod(), version: newest(bench), env: { CNI_NETNS: path(bench) } };
      bench.expectError('ADD', await bench.call('ADD', call));
    },
  }));
}

function failureKeepsNoAddress(): Case {
  return {
    id: 'add.failed.keeps-nothing',
    section: '4 Delegated plugins',
    level: 'SHOULD',
    title: 'ADD that fails keeps no address, link or route',
    ask: async (bench) => {
      const version = newest(bench);
      const first = bench.pod();
      await bench.add({ pod: first, version });
      await bench.del({ pod: first, version });
      const before = await bench.holdings();
      const pod = bench.pod();
      const env = { CNI_NETNS: '/run/netns/conformance-nowhere' };
      bench.expectError('ADD', await bench.call('ADD', { pod, version, env }));
      const occupied = bench.pod();
      if (bench.occasion.subject.makesInterface) {
        bench.foreignInterface(occupied);
        bench.expectError('ADD', await bench.call('ADD', { pod: occupied, version }));
      }
      await bench.expectNothingLeft('failed ADDs', before);
    },
  };
}

function twice(): Case {
  return {
    id: 'add.twice',
    section: '2 ADD',
    level: 'MUST',
    title: 'a second ADD fails or gives the same answer, and DEL then leaves nothing',
    ask: async (bench) => {
      const version = newest(bench);
      const first = bench.pod();
      await bench.add({ pod: first, version });
      await bench.del({ pod: first, version });
      const before = await bench.holdings();
      const pod = bench.pod();
      const { result } = await bench.add({ pod, version });
      const once = await bench.holdings();
      const again = await bench.call('ADD', { pod, version });
      if (again.exitCode === 0) {
        const addresses = readResult(version, parseJson(again.stdout)).ips.map(({ address }) => address);
        const same = result.ips.map(({ address }) => address);
        bench.require(String(addresses) === String(same), `answered ${String(addresses)} after ${String(same)}`);
      } else bench.expectError('the second ADD', again);
      await bench.expectNothingLeft('the second ADD', once);
      await bench.del({ pod, version });
      bench.expectPodEmpty('DEL', pod);
      await bench.expectNothingLeft('DEL', before);
    },
  };
}

function distinct(): Case {
  return {
    id: 'add.distinct',
    section: '2 ADD',
    level: 'MUST',
    title: 'two containers get different addresses',
    ask: async (bench) => {
      const version = newest(bench);
      const answers = [await bench.add({ pod: bench.pod(), version }), await bench.add({ pod: bench.pod(), version })];
      const addresses = answers.flatMap(({ result }) => result.ips.map(({ address }) => address));
      bench.require(new Set(addresses).size === addresses.length, `gave ${addresses.join(', ')}`);
    },
  };
}

function secondInterface(): Case {
  return {
    id: 'add.second-interface',
    section: '2 ADD',
    level: 'SHOULD',
    title: 'one container can have two interfaces, and DEL of one leaves the other',
    ask: async (bench) => {
      const version = newest(bench);
      const pod = bench.pod();
      await bench.add({ pod, version });
      const second = { pod, version, env: { CNI_IFNAME: 'net1' }, config: { name: 'conformance-second' } };
      const answer = await bench.call('ADD', second);
      bench.expectSuccess('ADD of net1', answer);
      bench.require(isObject(parseJson(answer.stdout)), 'ADD of net1 answered no object');
      bench.expectSuccess('DEL of net1', await bench.call('DEL', second));
      bench.require(pod.namespace.link('net1') === undefined, 'net1 is still there');
      bench.require(
        pod.namespace.link(bench.occasion.subject.interfaceName) !== undefined,
        'the other one has gone too',
      );
    },
  };
}
