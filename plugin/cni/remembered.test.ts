import { expect, test, vi } from 'vitest';

import { remembered } from './remembered.js';

test('a text is read once while few others come', () => {
  const read = vi.fn((text: string) => ({ text }));
  const readOnce = remembered(read);
  for (let round = 0; round < 3; round++)
    for (let network = 0; network < 8; network++) expect(readOnce(`${network}`)).toEqual({ text: `${network}` });
  expect(read).toHaveBeenCalledTimes(8);
  readOnce('8');
  readOnce('0');
  expect(read).toHaveBeenCalledTimes(10);
});

test('neither a failure nor a long text is remembered', () => {
  const read = vi.fn((text: string) => {
    if (text === '') throw new Error('empty');
    return { text };
  });
  const readOnce = remembered(read);
  const long = 'x'.repeat(20_000);
  for (let round = 0; round < 2; round++) {
    expect(() => readOnce('')).toThrow('empty');
    readOnce(long);
  }
  expect(read).toHaveBeenCalledTimes(4);
});
