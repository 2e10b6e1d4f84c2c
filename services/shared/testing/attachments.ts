import fc from 'fast-check';

import {
  MAX_CONTAINER_ID_BYTES,
  MAX_INTERFACE_NAME_BYTES,
  MAX_NETWORK_BYTES,
  type Attachment,
} from '../attachment/attachment.js';

const identifier = (maxBytes: number) =>
  fc.stringMatching(new RegExp(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,${maxBytes - 1}}$`));

/** Valid attachments with parts of all lengths. */
export const attachments: fc.Arbitrary<Attachment> = fc.record({
  network: identifier(MAX_NETWORK_BYTES),
  containerId: identifier(MAX_CONTAINER_ID_BYTES),
  interfaceName: identifier(MAX_INTERFACE_NAME_BYTES).filter((name) => !['lo', 'all', 'default'].includes(name)),
});
