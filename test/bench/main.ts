import { writeFileSync } from 'node:fs';
import { parseArgs } from 'node:util';

import { formatFigure, type Figure } from './figure.js';
import { measureCni } from './groups/cni.js';
import { measureDataplane } from './groups/dataplane.js';
import { measureIpamScale } from './groups/ipam-scale.js';
import { measureIpam } from './groups/ipam.js';
import { measureRuntime } from './groups/runtime.js';

const USAGE = 'usage: npm run bench -- [--only GROUP] [--json FILE]';

/** What can be measured, each side by side in one run with what it is compared with. */
const GROUPS: Readonly<Record<string, (report: (line: string) => void) => Promise<Figure[]>>> = {
  cni: measureCni,
  dataplane: measureDataplane,
  ipam: measureIpam,
  'ipam-scale': measureIpamScale,
  runtime: measureRuntime,
};

const say = (line: string) => process.stdout.write(`${line}\n`);

async function main(): Promise<void> {
  const { values } = parseArgs({ options: { only: { type: 'string' }, json: { type: 'string' } } });
  const names = values.only === undefined ? Object.keys(GROUPS) : [values.only];
  const figures: Figure[] = [];
  for (const name of names) {
    const measure = GROUPS[name];
    if (!measure)
      throw new Error(`there is no group ${name}; the groups are ${Object.keys(GROUPS).join(', ')}\n${USAGE}`);
    say(`── ${name}`);
    figures.push(...(await measure((line) => say(`  ${line}`))));
  }
  for (const figure of figures) say(formatFigure(figure));
  if (values.json !== undefined) writeFileSync(values.json, `${JSON.stringify(figures, null, 2)}\n`);
}

main().catch((error: unknown) => {
  process.stderr.write(`bench: ${error instanceof Error ? error.message : String(error)}\n`);
  process.exitCode = 1;
});
