// `npm run dashboards`: writes the dashboards, alert rules and documents of this folder. Needs the build.
import { mkdirSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import process from 'node:process';

import { generatedFiles } from './dist/documents.js';

for (const [path, text] of Object.entries(generatedFiles())) {
  const file = join(import.meta.dirname, path);
  mkdirSync(dirname(file), { recursive: true });
  writeFileSync(file, text);
  process.stdout.write(`${file}\n`);
}
