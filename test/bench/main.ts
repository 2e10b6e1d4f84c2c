import { writeFileSync } from 'node:fs';
import { parseArgs } from 'node:util';

import { formatFigure, type Figure } from './figure.js';
import { GROUPS } from './groups.js';

const USAGE = 'usage: npm run bench -- [--only GROUP,…] [--json FILE]';

const say = (line: string) => process.stdout.write(`${line}\n`);

async function main(): Promise<void> {
  const { values } = parseArgs({ options: { only: { type: 'string' }, json: { type: 'string' } } });
  const names = values.only?.split(',') ?? Object.keys(GROUPS);
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
