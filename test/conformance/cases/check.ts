import type { Bench, Pod } from '../bench.js';
import type { Case, Occasion } from '../case.js';
import type { Result } from '../specification/result.js';
import { expectKernelAgrees } from './kernel-agreement.js';
import { newest } from './newest.js';

const SECTION = '2 CHECK';

interface Damage {
  readonly id: string;
  readonly title: string;
  readonly done: (bench: Bench, pod: Pod, result: Result) => void;
}

const DAMAGES: readonly Damage[] = [
  {
    id: 'address',
    title: 'CHECK fails when an address of the result has gone',
    done: (bench, { namespace }, { ips }) => {
      const [ip] = ips;
      if (ip === undefined) return bench.notApplicable('the result has no address');
      namespace.ip('address', 'delete', ip.address, 'dev', bench.occasion.subject.interfaceName);
    },
  },
  {
    id: 'route',
    title: 'CHECK fails when a route of the result has gone',
    done: (bench, { namespace }, { routes }) => {
      const made = namespace.routes().find(({ dst }) => routes.some((route) => route.dst === dst));
      if (made === undefined) return bench.notApplicable('the result has no route that the container has');
      namespace.ip(made.dst.includes(':') ? '-6' : '-4', 'route', 'delete', made.dst, 'dev', made.dev);
    },
  },
  {
    id: 'link',
    title: 'CHECK fails when the interface has gone',
    done: (bench, { namespace }) => {
      const { subject } = bench.occasion;
      if (!subject.makesInterface) bench.notApplicable('it makes no interface');
      namespace.ip('link', 'delete', subject.interfaceName);
    },
  },
];

/** CHECK of a changed container. That it succeeds otherwise is tested version by version. */
export function checkCases({ subject }: Occasion): readonly Case[] {
  const damages = subject.kind === 'interface' ? DAMAGES.map(damageCase) : [];
  return [...damages, withoutResult(), ...(subject.kind === 'meta' ? [] : [ofNothing()])];
}

function damageCase({ id, title, done }: Damage): Case {
  return {
    id: `check.lost.${id}`,
    section: SECTION,
    level: 'SHOULD',
    title,
    ask: async (bench) => {
      const version = newest(bench, '0.4.0');
      const pod = bench.pod();
      const { value, result } = await bench.add({ pod, version });
      done(bench, pod, result);
      bench.look(pod);
      const outcome = await bench.call('CHECK', { pod, version, config: { prevResult: value } });
      if (outcome.exitCode === 0 && wasMended(bench, pod, result)) return;
      bench.expectError('CHECK', outcome);
    },
  };
}

/** A plugin with a resident process may have restored the object before the CHECK. */
function wasMended(bench: Bench, pod: Pod, result: Result): boolean {
  const before = bench.faults.length;
  expectKernelAgrees(bench, pod, result);
  return bench.faults.length === before;
}

function withoutResult(): Case {
  return {
    id: 'check.without-result',
    section: SECTION,
    level: 'MUST',
    title: 'CHECK without prevResult is refused',
    ask: async (bench) => {
      const version = newest(bench, '0.4.0');
      if (bench.occasion.subject.kind === 'ipam') bench.notApplicable('the caller of an IPAM plugin may give it none');
      const pod = bench.pod();
      await bench.add({ pod, version });
      bench.expectError('CHECK', await bench.call('CHECK', { pod, version, config: { prevResult: undefined } }));
    },
  };
}

function ofNothing(): Case {
  return {
    id: 'check.deleted',
    section: SECTION,
    level: 'SHOULD',
    title: 'CHECK fails after DEL',
    ask: async (bench) => {
      const version = newest(bench, '0.4.0');
      if (!bench.occasion.subject.givesDistinctAddresses && bench.occasion.subject.kind === 'ipam') {
        bench.notApplicable('it keeps no record of what it gives');
      }
      const pod = bench.pod();
      const { value } = await bench.add({ pod, version });
      await bench.del({ pod, version });
      bench.expectError('CHECK', await bench.call('CHECK', { pod, version, config: { prevResult: value } }));
    },
  };
}
