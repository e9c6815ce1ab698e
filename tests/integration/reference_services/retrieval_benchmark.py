"""A small retrieval benchmark: sentences of contracts and notices, each with questions in other words."""

SET: list[tuple[str, list[str]]] = [
    (
        "The term of this agreement begins on 1 March 2026 and ends on 28 February 2029.",
        ["When does the contract expire?", "How long is the deal in force?"],
    ),
    (
        "Invoices are payable within forty-five days of receipt by bank transfer.",
        ["How much time does the buyer have to pay a bill?", "What is the payment method?"],
    ),
    ("Late payments bear interest of nine percentage points above the base rate.", ["What if money arrives too late?"]),
    (
        "The Supplier maintains product liability insurance of at least 5,000,000 euros per event.",
        ["What coverage must the vendor carry?"],
    ),
    (
        "Goods are delivered to the warehouse at Harbour Street 12, Rotterdam, on Tuesdays and Fridays.",
        ["Where are shipments sent?", "On which weekdays do trucks arrive?"],
    ),
    (
        "Either party may end this agreement by giving ninety days' written notice.",
        ["How can one get out of the contract?", "What is the notice period for termination?"],
    ),
    (
        "Disputes are settled by arbitration in Zurich under the rules of the chamber of commerce.",
        ["Where would legal conflicts be decided?"],
    ),
    (
        "The contact person of the Buyer is Maria Lindqvist, head of procurement.",
        ["Who represents the purchasing company?"],
    ),
    ("The unit price of a pump is 1,240 euros, excluding value added tax.", ["What does one pump cost?"]),
    (
        "Defective parts are replaced free of charge for twenty-four months after delivery.",
        ["How long is the warranty?", "Who pays for broken components?"],
    ),
    (
        "Information marked confidential must not be disclosed to third parties for five years.",
        ["How long must secrets be kept?"],
    ),
    ("Neither party is liable for delays caused by war, strikes, floods or epidemics.", ["What about disasters?"]),
    (
        "All pumps are tested at 16 bar for thirty minutes before they leave the factory.",
        ["How are products checked before shipping?"],
    ),
    ("Packaging materials remain the property of the Supplier.", ["Who owns the pallets and boxes?"]),
    ("The laws of Sweden govern this agreement.", ["Which country's legislation applies?"]),
    (
        "For every full week of delay the Supplier pays one percent of the order value.",
        ["What is the penalty for late delivery?"],
    ),
    ("Employees may take thirty days of paid holiday in a calendar year.", ["How much vacation do staff get?"]),
    ("Personal data are stored on servers within the European Union only.", ["Where is private information kept?"]),
    ("The machine weighs 320 kilograms.", ["How heavy is the device?"]),
    ("The committee meets on the first Monday of each month in the town hall.", ["When do the members gather?"]),
    ("Rent is due on the third working day of the month.", ["When must the tenant pay?"]),
    ("Pets may be kept in the flat only with the consent of the landlord.", ["Is a dog allowed?"]),
    ("Smoking is prohibited in all buildings.", ["Can I have a cigarette inside?"]),
    ("Side effects included headache, nausea and tiredness.", ["Which adverse reactions occurred?"]),
    ("Passengers may bring one cabin bag of up to eight kilograms.", ["What is the hand luggage limit?"]),
    ("Students must hand in the thesis by 15 June.", ["What is the deadline for the paper?"]),
    ("The library opens at eight in the morning and closes at midnight.", ["What are the opening hours?"]),
    ("Revenue rose by twelve percent to 84 million, mostly owing to sales in Asia.", ["Why did turnover grow?"]),
    ("The board proposes a dividend of 1.20 per share.", ["How much will shareholders receive?"]),
    ("Backups run every night and are kept for thirty-five days.", ["How long are copies of the data retained?"]),
]
