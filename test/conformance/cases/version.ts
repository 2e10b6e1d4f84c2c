import type { Bench } from '../bench.js';
import type { Case, Occasion } from '../case.js';
import { isObject, parseJson } from '../specification/json.js';
import { versionAnswerFaults } from '../specification/version-answer.js';
import { ABSURD_VERSION, VERSIONS, type Version } from '../specification/versions.js';

const SECTION = '2 VERSION';

/** VERSION, and the versions that its answer omits. */
export function versionCases({ versions }: Occasion): readonly Case[] {
  const unlisted = [...VERSIONS.filter((version) => !versions.includes(version)), ABSURD_VERSION];
  return [
    {
      id: 'version.form',
      section: SECTION,
      level: 'MUST',
      title: 'VERSION lists the supported versions',
      ask: (bench) => asked(bench, JSON.stringify({ cniVersion: '1.0.0' })),
    },
    {
      id: 'version.echo',
      section: SECTION,
      level: 'SHOULD',
      title: 'VERSION answers with the cniVersion that it was asked with',
      ask: echoes,
    },
    {
      id: 'version.without-input',
      section: SECTION,
      level: 'SHOULD',
      title: 'VERSION needs nothing but CNI_COMMAND',
      ask: (bench) => asked(bench, ''),
    },
    ...unlisted.map((version): Case => {
      return {
        id: `version.unlisted.${version}`,
        section: '5 Error',
        level: 'MUST',
        title: `ADD in ${version}, which VERSION does not list, is refused with code 1`,
        ask: async (bench) => {
          const pod = bench.pod();
          const outcome = await bench.call('ADD', { pod, version: '1.0.0', config: { cniVersion: version } });
          bench.expectError('ADD', outcome, { codes: [1] });
          bench.expectPodEmpty('a refused ADD', pod);
        },
      };
    }),
    absentVersion(versions),
  ];
}

async function asked(bench: Bench, stdin: string): Promise<void> {
  const outcome = await bench.call('VERSION', { version: '1.0.0', stdin, env: { CNI_PATH: undefined } });
  bench.expectSuccess('VERSION', outcome);
  for (const fault of versionAnswerFaults(parseJson(outcome.stdout))) bench.fault(fault);
}

async function echoes(bench: Bench): Promise<void> {
  for (const version of bench.occasion.versions) {
    const stdin = JSON.stringify({ cniVersion: version });
    const { stdout } = await bench.call('VERSION', { version, stdin });
    const answer = parseJson(stdout);
    const said = isObject(answer) ? answer.cniVersion : undefined;
    bench.require(said === version, `asked with ${version}, it answers ${JSON.stringify(said)}`);
  }
}

/** A configuration without a version has version 0.1.0, the only one without the field. */
function absentVersion(versions: readonly Version[]): Case {
  return {
    id: 'version.absent',
    section: '1 cniVersion',
    level: 'SHOULD',
    title: 'a configuration without cniVersion is one of 0.1.0',
    ask: async (bench) => {
      if (bench.occasion.subject.kind === 'meta') bench.notApplicable('0.1.0 has no chains');
      const pod = bench.pod();
      const outcome = await bench.call('ADD', { pod, version: '0.1.0', config: { cniVersion: undefined } });
      if (versions.includes('0.1.0')) bench.expectSuccess('ADD', outcome);
      else bench.expectError('ADD', outcome);
    },
  };
}
