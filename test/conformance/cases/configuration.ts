import type { Call } from '../bench.js';
import type { Case, Occasion } from '../case.js';
import { readErrorDocument } from '../specification/error-document.js';
import { newest } from './newest.js';

const [INCOMPATIBLE, DECODE, CONFIG] = [1, 6, 7];

interface Fault {
  readonly id: string;
  readonly title: string;
  readonly call: Pick<Call, 'stdin' | 'config'>;
  readonly codes: readonly number[];
}

const FAULTS: readonly Fault[] = [
  { id: 'empty', title: 'an empty configuration is refused', call: { stdin: '' }, codes: [DECODE] },
  { id: 'no-json', title: 'a configuration that is no JSON is refused', call: { stdin: '{"name": ' }, codes: [DECODE] },
  { id: 'list', title: 'a configuration that is a list is refused', call: { stdin: '[]' }, codes: [DECODE, CONFIG] },
  {
    id: 'binary',
    title: 'a configuration of zero bytes and other noise is refused',
    call: { stdin: '\u0000\u0001\ufffd{}' },
    codes: [DECODE],
  },
  {
    id: 'name.absent',
    title: 'a configuration without a name is refused',
    call: { config: { name: undefined } },
    codes: [CONFIG],
  },
  { id: 'name.empty', title: 'an empty name is refused', call: { config: { name: '' } }, codes: [CONFIG] },
  { id: 'name.slash', title: 'a name with a slash is refused', call: { config: { name: '../net' } }, codes: [CONFIG] },
  {
    id: 'name.dot',
    title: 'a name that begins with a dot is refused',
    call: { config: { name: '.net' } },
    codes: [CONFIG],
  },
  {
    id: 'name.number',
    title: 'a name that is a number is refused',
    call: { config: { name: 7 } },
    codes: [DECODE, CONFIG],
  },
  {
    id: 'version.word',
    title: 'a cniVersion that is a word is refused',
    call: { config: { cniVersion: 'newest' } },
    codes: [INCOMPATIBLE, DECODE, CONFIG],
  },
  {
    id: 'version.number',
    title: 'a cniVersion that is a number is refused',
    call: { config: { cniVersion: 1 } },
    codes: [INCOMPATIBLE, DECODE, CONFIG],
  },
];

/** Faults of the configuration: each is refused with its code and changes nothing. */
export function configurationCases({ subject }: Occasion): readonly Case[] {
  return [
    ...FAULTS.map(refusal),
    ...(subject.kind === 'interface' ? [unknownIpam(), unknownIpamKeepsNothing()] : []),
    errorVersion(),
    unknownKeys(),
  ];
}

function refusal({ id, title, call, codes }: Fault): Case {
  return {
    id: `config.${id}`,
    section: '5 Error',
    level: 'MUST',
    title,
    ask: async (bench) => {
      const pod = bench.pod();
      const before = await bench.holdings();
      bench.expectError('ADD', await bench.call('ADD', { pod, version: newest(bench), ...call }), { codes });
      bench.expectPodEmpty('the refused call', pod);
      await bench.expectNothingLeft('the refused call', before);
    },
  };
}

function unknownIpam(): Case {
  return {
    id: 'config.ipam.unknown',
    section: '4 Delegated plugins',
    level: 'MUST',
    title: 'ADD with an IPAM plugin that is not there fails',
    ask: async (bench) => {
      if (bench.occasion.subject.template.ipam === undefined) bench.notApplicable('the plugin has no IPAM');
      const config = { ipam: { type: 'conformance-nowhere' } };
      bench.expectError('ADD', await bench.call('ADD', { pod: bench.pod(), version: newest(bench), config }));
    },
  };
}

/** The runtime's DEL cannot succeed either when the IPAM plugin is missing. */
function unknownIpamKeepsNothing(): Case {
  return {
    id: 'config.ipam.unknown-keeps-nothing',
    section: '2 ADD',
    level: 'ADVICE',
    title: 'ADD with an IPAM plugin that is not there leaves nothing, before any DEL',
    ask: async (bench) => {
      if (bench.occasion.subject.template.ipam === undefined) bench.notApplicable('the plugin has no IPAM');
      const version = newest(bench);
      const first = bench.pod();
      await bench.add({ pod: first, version });
      await bench.del({ pod: first, version });
      const before = await bench.holdings();
      const pod = bench.pod();
      const config = { ipam: { type: 'conformance-nowhere' } };
      bench.expectError('ADD', await bench.call('ADD', { pod, version, config }));
      bench.expectPodEmpty('a failed ADD', pod);
      await bench.expectNothingLeft('a failed ADD', before);
    },
  };
}

function errorVersion(): Case {
  return {
    id: 'error.version',
    section: '5 Error',
    level: 'SHOULD',
    title: 'an error document has the cniVersion of the configuration',
    ask: async (bench) => {
      const version = newest(bench);
      const { stdout } = await bench.call('ADD', { pod: bench.pod(), version, env: { CNI_IFNAME: undefined } });
      const said = readErrorDocument(stdout)?.cniVersion;
      bench.require(said === version, `cniVersion of the error is ${JSON.stringify(said)} and not "${version}"`);
    },
  };
}

function unknownKeys(): Case {
  return {
    id: 'config.unknown-keys',
    section: '1 Plugin configuration',
    level: 'ADVICE',
    title: 'keys that the plugin does not know, and the reserved ones, do no harm',
    ask: async (bench) => {
      const config = { 'conformance.example/key': { a: [1] }, capabilities: { mac: true }, 'cni.dev/other': null };
      await bench.checkedAdd({ pod: bench.pod(), version: newest(bench), config });
    },
  };
}
