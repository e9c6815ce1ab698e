// Thrown by the work: the RESULT is FAILED with this class and code. The message is shown to operators.
export class StepFailure extends Error {
  constructor(code, message, failureClass = "RETRYABLE") {
    super(message);
    this.code = code;
    this.failureClass = failureClass;
  }
}

// A failure that no other attempt will cure.
export const never = (code, message) => new StepFailure(code, message, "NON_RETRYABLE");
