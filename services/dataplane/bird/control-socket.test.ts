import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import { codeOf, isRefusal, outcomeOf, ReplyReader, type Reply } from './control-socket.js';

/** Output of BIRD 2.0.12 for `configure check`, `show status` and an invalid command, after its greeting. */
const CAPTURE = [
  '0001 BIRD 2.0.12 ready.',
  '0002-Reading configuration from /etc/bird/bad.conf',
  '8002 /etc/bird/bad.conf:2:1 syntax error, unexpected CF_SYM_UNDEFINED',
  '1000-BIRD 2.0.12',
  '1011-Router ID is 192.0.2.1',
  ' Hostname is vm',
  ' Last reboot on 2026-11-21 17:56:05.876',
  '0013 Daemon is up and running',
  '9001 syntax error, unexpected CF_SYM_UNDEFINED',
  '',
].join('\n');

test('replies end with their last line, however the socket cuts them', () => {
  fc.assert(
    fc.property(fc.array(fc.nat(CAPTURE.length), { maxLength: 12 }), (places) => {
      const cuts = [0, ...places, CAPTURE.length].sort((a, b) => a - b);
      const reader = new ReplyReader();
      const replies = cuts.slice(1).flatMap((end, place) => reader.push(CAPTURE.slice(cuts[place], end)));
      expect(replies.map((reply) => [codeOf(reply), reply.lines.length, outcomeOf(reply), isRefusal(reply)])).toEqual([
        [1, 1, 'BIRD 2.0.12 ready.', false],
        [8002, 2, '/etc/bird/bad.conf:2:1 syntax error, unexpected CF_SYM_UNDEFINED', true],
        [13, 5, 'Daemon is up and running', false],
        [9001, 1, 'syntax error, unexpected CF_SYM_UNDEFINED', true],
      ]);
    }),
    { seed: 20_261_121 },
  );
});

test('a line without a code has the code of the line before it', () => {
  const [reply] = new ReplyReader().push('1006-a\n b\n   c\n\n0000 \n');
  expect(reply).toEqual<Reply>({
    lines: [
      { code: 1006, text: 'a' },
      { code: 1006, text: 'b' },
      { code: 1006, text: '  c' },
      { code: 1006, text: '' },
      { code: 0, text: '' },
    ],
  });
});

test('asynchronous messages are not part of a reply', () => {
  expect(new ReplyReader().push('+log line\n0003 Reconfigured\n')).toMatchObject([{ lines: [{ code: 3 }] }]);
});

describe('a peer that is not BIRD', () => {
  test.each(['HTTP/1.1 400 Bad Request\n', '12 short\n', '00010 long\n'])('%j is refused', (text) => {
    expect(() => new ReplyReader().push(text)).toThrow(RangeError);
  });
});
