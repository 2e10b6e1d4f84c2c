import process from 'node:process';

import { EmbeddedStore } from '../embedded/embedded-store.js';

/**
 * The victim of the kill test: commits transactions one after another, of three records, and of ten, which the store writes on
 * another thread, and prints the number of each that was acknowledged. Run with the directory as its only argument.
 */
const [directory = ''] = process.argv.slice(-1);
const signal = new AbortController().signal;
const store = await EmbeddedStore.open({ directory, pid: process.pid });
const { records } = await store.list('/log/', signal);

for (let number = records.length; ; number++) {
  const value = Buffer.from(String(number));
  const keys = ['/first', `/log/${String(number).padStart(8, '0')}`, '/second'];
  const more = number % 2 === 0 ? [] : Array.from({ length: 7 }, (_, index) => `/more/${index}`);
  const puts = [...keys, ...more].map((key) => ({ key, value }));
  await store.commit({ comparisons: [], puts, deletes: [] }, signal);
  process.stdout.write(`${number}\n`);
}
