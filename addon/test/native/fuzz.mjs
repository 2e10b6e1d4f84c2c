#!/usr/bin/env node
// Feeds the readers with libFuzzer's mutations of the captures, for a given time, under sanitizers.
// usage: npm run fuzz -w @podwire/netlink -- SECONDS   (default 60; exit code 1 for a finding, 2 when it cannot be run)
// A finding stays in build/fuzz; as a file of captures/ it is tried by every `npm run test:codec` from then on.
import { Buffer } from 'node:buffer';
import { spawnSync } from 'node:child_process';
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import process from 'node:process';
import { fileURLToPath } from 'node:url';

import { ensurePrograms, FUZZ_PROGRAMS } from '../../../deploy/local/programs.mjs';

const NATIVE = dirname(fileURLToPath(import.meta.url));
const BUILD = join(NATIVE, '..', '..', 'build');
const SECONDS_DEFAULT = 60;

function fail(message) {
  process.stderr.write(`fuzz: ${message}\n`);
  process.exit(2);
}

/** The captures' datagrams, as files of their own, for libFuzzer to begin with. Not kept: it grows from them each time. */
function writeCorpus(folder) {
  mkdirSync(folder, { recursive: true });
  const captures = readdirSync(join(NATIVE, 'captures'), { recursive: true });
  for (const name of captures.filter((file) => file.endsWith('.hex'))) {
    const lines = readFileSync(join(NATIVE, 'captures', name), 'utf8').split('\n');
    const hex = lines.filter((line) => !line.startsWith('#')).join('');
    writeFileSync(join(folder, name.replace('.hex', '').replace('/', '-')), Buffer.from(hex, 'hex'));
  }
}

function main([argument, ...rest]) {
  const seconds = Number(argument ?? SECONDS_DEFAULT);
  if (!Number.isInteger(seconds) || seconds < 1 || rest.length > 0)
    fail('usage: npm run fuzz -w @podwire/netlink -- SECONDS');
  const missing = ensurePrograms(FUZZ_PROGRAMS);
  if (missing) fail(missing);
  const made = spawnSync('make', ['-C', NATIVE, 'fuzz'], { stdio: 'inherit' });
  if (made.status !== 0) fail(`cannot build it; it needs Debian's packages ${Object.values(FUZZ_PROGRAMS).join(' ')}`);
  const folder = join(BUILD, 'fuzz');
  const corpus = join(folder, 'corpus');
  writeCorpus(corpus);
  const options = [
    `-max_total_time=${seconds}`,
    '-max_len=8192',
    '-timeout=10',
    '-print_final_stats=1',
    '-verbosity=1',
  ];
  const found = spawnSync(join(BUILD, 'test', 'fuzz'), [...options, `-artifact_prefix=${folder}/`, corpus], {
    stdio: 'inherit',
  });
  process.exit(found.status === 0 ? 0 : 1);
}

main(process.argv.slice(2));
